"""Fetch the jar with Spark's own SQL test files, for the tests; once, into the environment.

    .venv/bin/python scripts/spark_suite.py

Ivy, which is part of PySpark, fetches it. The digest of the jar is below.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "4.2.0"
NAME = "spark-sql_2.13.jar"
DIGEST = "810bef6fd568e1626aad7354a1161e9e5ac629fbc55ba0a9a4e3cec8c06376eb"
MODULE = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="tests" module="suite"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.spark" name="spark-sql_2.13" rev="{VERSION}" transitive="false"
        conf="default->master">
      <artifact name="spark-sql_2.13" type="jar" ext="jar" m:classifier="tests"/>
    </dependency>
  </dependencies>
</ivy-module>
"""
SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def jar() -> Path:
    """Return where the jar is, inside the running environment."""
    return Path(sys.prefix) / "spark-suite" / f"spark-sql-{VERSION}-tests.jar"


def fetch() -> None:
    """Fetch the jar.

    Raises:
        CalledProcessError, OSError: Ivy failed.
        ValueError: the jar has another digest than expected.
    """
    import pyspark

    (ivy,) = (Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar")
    with tempfile.TemporaryDirectory(dir=sys.prefix) as name:
        folder = Path(name)
        (folder / "ivy.xml").write_text(MODULE)
        (folder / "settings.xml").write_text(SETTINGS)
        command = ["java", "-cp", str(ivy), "org.apache.ivy.Main"]
        command += ["-settings", "settings.xml", "-cache", "cache", "-ivy", "ivy.xml"]
        command += ["-retrieve", "[artifact].[ext]"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        seen = hashlib.sha256((folder / NAME).read_bytes()).hexdigest()
        if seen != DIGEST:
            raise ValueError(f"the jar of Spark's tests has digest {seen}, expected {DIGEST}")
        jar().parent.mkdir(exist_ok=True)
        shutil.move(folder / NAME, jar())


def main() -> int:
    """Fetch the jar if it is missing."""
    if not jar().exists():
        sys.stdout.write("setup: fetching Spark's own SQL test files\n")
        sys.stdout.flush()
        fetch()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
