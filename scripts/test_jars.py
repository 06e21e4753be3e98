"""Fetch the jars that tests need beside PySpark's own; once, into the environment.

    .venv/bin/python scripts/test_jars.py

Ivy, which is part of PySpark, fetches them: Spark's own SQL test files, and the parts of Hadoop
that run a whole HDFS in one process. Tests of `make soak` fetch what a whole YARN needs beside
them. The digests are below.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Jar:
    """One jar of Maven Central."""

    group: str
    name: str
    version: str
    digest: str
    """SHA-256."""
    classifier: str = ""

    @property
    def file(self) -> str:
        parts = (self.name, self.version, self.classifier)
        return f"{'-'.join(part for part in parts if part)}.jar"


SPARK_TESTS = Jar(
    "org.apache.spark",
    "spark-sql_2.13",
    "4.2.0",
    "810bef6fd568e1626aad7354a1161e9e5ac629fbc55ba0a9a4e3cec8c06376eb",
    "tests",
)
HADOOP = Jar(
    "org.apache.hadoop",
    "hadoop-client-minicluster",
    "3.5.0",
    "06772d24529e59939915979b3edba204d367750ef7dc5120411f35221dd4818c",
)
"""Of the version of Hadoop's client in the newest PySpark."""
JARS = (SPARK_TESTS, HADOOP)
YARN_JARS = (
    Jar(
        "org.junit.jupiter",
        "junit-jupiter-api",
        "5.13.4",
        "d1bb81abfd9e03418306b4e6a3390c8db52c58372e749c2980ac29f0c08278f1",
    ),
    Jar(
        "org.bouncycastle",
        "bcpkix-jdk18on",
        "1.82",
        "bdc723e20834832ac6af136cb5b5ff05e43b71d4fa151cc6510d9212ee086e63",
    ),
    Jar(
        "org.bouncycastle",
        "bcprov-jdk18on",
        "1.82",
        "14cde2fdfaa8890480a8e5b67aceef0c90f96682c1e23c133bafdc9e0b3255ce",
    ),
    Jar(
        "org.bouncycastle",
        "bcutil-jdk18on",
        "1.82",
        "4420691958ad1c0ba275a6d6d8a6317adbdbdc9277055b6a72aa89c88cda8c7d",
    ),
)
"""What Hadoop's jar asks for when its resource manager starts."""
MODULE = """<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tests" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="{group}" name="{name}" rev="{version}" transitive="false"
        conf="default->master">
      <artifact name="{name}" type="jar" ext="jar"{classifier}/>
    </dependency>
  </dependencies>
</ivy-module>
"""
SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def path_of(jar: Jar) -> Path:
    """Return where a jar is, inside the running environment."""
    return Path(sys.prefix) / "test-jars" / jar.file


def fetch(jar: Jar) -> None:
    """Fetch a jar.

    Raises:
        CalledProcessError, OSError: Ivy failed.
        ValueError: the jar has another digest than expected.
    """
    import pyspark

    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    classifier = f' m:classifier="{jar.classifier}"' if jar.classifier else ""
    names = {"group": jar.group, "name": jar.name, "version": jar.version}
    with tempfile.TemporaryDirectory(dir=sys.prefix) as name:
        folder = Path(name)
        (folder / "ivy.xml").write_text(MODULE.format(**names, classifier=classifier))
        (folder / "settings.xml").write_text(SETTINGS)
        command = ["java", "-cp", str(ivy), "org.apache.ivy.Main"]
        command += ["-settings", "settings.xml", "-cache", "cache", "-ivy", "ivy.xml"]
        command += ["-retrieve", "[artifact].[ext]"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        fetched = folder / f"{jar.name}.jar"
        seen = hashlib.sha256(fetched.read_bytes()).hexdigest()
        if seen != jar.digest:
            raise ValueError(f"{jar.file} has digest {seen}, expected {jar.digest}")
        path_of(jar).parent.mkdir(exist_ok=True)
        shutil.move(fetched, path_of(jar))


def main() -> int:
    """Fetch the jars that are missing."""
    for jar in JARS:
        if not path_of(jar).exists():
            sys.stdout.write(f"setup: fetching {jar.file}\n")
            sys.stdout.flush()
            fetch(jar)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
