"""Fetch Delta Lake and Apache Iceberg, and a PySpark that they run on, for the tests.

    .venv/bin/python scripts/table_formats.py [4.1]

Neither of the two exists for the newest PySpark. So the tests of both run on an older one, in
.venv/table-formats, where this script puts it and the jars, once. The clients of the registries
fetch them: pip, and the resolver of packages that is part of Spark. The digests of the jars are
below. In an environment whose PySpark is one of these versions, only the jars are fetched.
"""

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEWEST = "4.1"
JARS = {
    "4.0": {
        "io.delta:delta-spark_2.13:4.0.1": (
            "a1e76860b19fe1e6b205a4ea7a9099a2f9575d39bb71d49b3e679b299d0efb91"
        ),
        "io.delta:delta-storage:4.0.1": (
            "ecc42c5aaa51c423312d9e4e48aa4a12b34740bf2c37de0e8f279277ec3d12e4"
        ),
        "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1": (
            "2192a0881ed0f5773b5a83a8820d2b0b2069beec203028643a1c338551007f09"
        ),
    },
    "4.1": {
        "io.delta:delta-spark_4.1_2.13:4.4.0": (
            "75a9400986853c061f5109f012547de2545a5759e5e752e5ef633dabe16a4f10"
        ),
        "io.delta:delta-storage:4.4.0": (
            "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc"
        ),
        "io.delta:delta-kernel-api:4.4.0": (
            "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11"
        ),
        "io.delta:delta-kernel-defaults:4.4.0": (
            "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b"
        ),
        "io.delta:delta-kernel-unitycatalog:4.4.0": (
            "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa"
        ),
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0": (
            "d6ea6c5d099288daeb7d5a92061bd3d7d8f296492632b42378e5f2f0e3066242"
        ),
    },
}
"""PySpark -> coordinates -> SHA-256."""
LEFT_OUT = (
    *("org.slf4j", "com.fasterxml*", "org.apache.parquet", "org.apache.hadoop", "org.scala-lang"),
    *("org.antlr", "io.unitycatalog", "software.amazon*", "org.apache.spark", "com.google*"),
    *("org.apache.logging*", "org.roaringbitmap"),
)
"""Groups that Spark has itself, or that need a catalog service."""
SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def home() -> Path:
    """Return where everything is kept, inside the running environment."""
    return Path(sys.prefix) / "table-formats"


def installed() -> str:
    """Return the minor version of the PySpark of the running environment."""
    return ".".join(importlib.metadata.version("pyspark").split(".")[:2])


def pyspark_of(minor: str) -> Path | None:
    """Return the folder that holds this PySpark; None if it is the environment's own."""
    return None if installed() == minor else home() / f"pyspark-{minor}"


def jars_of(minor: str) -> list[Path]:
    """Return the jars for this PySpark, in the order of `JARS`."""
    names = [c.split(":")[1:] for c in JARS[minor]]
    return [home() / f"jars-{minor}" / f"{name}-{version}.jar" for name, version in names]


def missing(minor: str) -> str:
    """Return what is missing for this PySpark, in words; "" if nothing is."""
    folder = pyspark_of(minor)
    if folder is not None and not (folder / "pyspark" / "bin" / "spark-submit").exists():
        return f"PySpark {minor} in {folder}"
    absent = [str(jar) for jar in jars_of(minor) if not jar.exists()]
    return ", ".join(absent)


def environment(minor: str) -> dict[str, str]:
    """Return the variables of a process that uses this PySpark."""
    folder = pyspark_of(minor)
    return (
        {} if folder is None else {"PYTHONPATH": str(folder), "SPARK_HOME": str(folder / "pyspark")}
    )


def fetch(minor: str) -> None:
    """Fetch what is missing for this PySpark.

    Raises:
        CalledProcessError, OSError: a client of a registry failed.
        ValueError: a jar has another digest than expected.
    """
    folder = pyspark_of(minor)
    if folder is not None and not (folder / "pyspark" / "bin" / "spark-submit").exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        with tempfile.TemporaryDirectory(dir=sys.prefix) as target:
            options = ["--no-deps", "--no-compile", "--target", target]
            subprocess.run([*pip, *options, f"pyspark=={minor}.*"], check=True)
            folder.parent.mkdir(exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            Path(target).rename(folder)
            Path(target).mkdir()  # the context removes it
    if missing(minor):
        _fetch_jars(minor)


def _fetch_jars(minor: str) -> None:
    folder = pyspark_of(minor)
    import_from = str(folder) if folder else ""
    submit = "import os, pyspark; print(os.path.dirname(pyspark.__file__))"
    found = subprocess.run(
        [sys.executable, "-c", submit],
        env={**os.environ, "PYTHONPATH": import_from},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    with tempfile.TemporaryDirectory(dir=sys.prefix) as cache:
        program = Path(cache) / "nothing.py"
        program.write_text("")
        settings = Path(cache) / "ivysettings.xml"
        settings.write_text(SETTINGS)  # a local repository may have the description of a jar alone
        command = [f"{found}/bin/spark-submit", "--packages", ",".join(JARS[minor])]
        command += ["--exclude-packages", ",".join(f"{group}:*" for group in LEFT_OUT)]
        command += ["--conf", f"spark.jars.ivySettings={settings}"]
        command += ["--conf", f"spark.jars.ivy={cache}", str(program)]
        variables = {"SPARK_HOME": found, "PYTHONPATH": import_from}
        variables["PYSPARK_PYTHON"] = sys.executable
        done = subprocess.run(
            command, env={**os.environ, **variables}, check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise OSError(f"the jars cannot be fetched: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        for (coordinates, digest), jar in zip(JARS[minor].items(), jars_of(minor), strict=True):
            group, name, version = coordinates.split(":")
            (source,) = Path(cache, "jars").glob(f"{group}_{name}-{version}.jar")
            seen = hashlib.sha256(source.read_bytes()).hexdigest()
            if seen != digest:
                raise ValueError(f"{coordinates} has digest {seen}, expected {digest}")
            jar.parent.mkdir(exist_ok=True)
            shutil.move(source, jar)


def main() -> int:
    """Fetch for the versions that are named, by default for the newest; exit status 1 if not."""
    for minor in sys.argv[1:] or [installed() if installed() in JARS else NEWEST]:
        if missing(minor):
            sys.stdout.write(f"setup: fetching Delta, Iceberg and PySpark {minor}\n")
            sys.stdout.flush()
            fetch(minor)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
