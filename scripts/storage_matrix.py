"""Run the kit and Spark's programs on every storage; write a table of docs/internals/storage.md.

    .venv/bin/python scripts/storage_matrix.py [azurite ...]

Each storage gets one row: how many tests of the conformance kit passed, and of the programs that
kill a driver, resume it, and answer a join query twice.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "suite"))
from document import with_row  # noqa: E402 - the writer of tables that benchmarks have

PAGE = ROOT / "docs" / "internals" / "storage.md"
HEAD = ("storage", "kit", "killed and resumed, a join twice", "seconds", "day")
OTHER, OTHER_SPARK = (
    "tests/storage/test_other_servers.py",
    "tests/spark/test_other_servers_spark.py",
)
STORAGES: dict[str, tuple[str, list[str], list[str]]] = {
    "local": ("local folder", ["tests/storage/test_local_storage.py::TestLocalStorage"], []),
    "seaweedfs": ("SeaweedFS 4.48", ["tests/storage/test_s3_storage.py::TestS3Storage"], []),
    "hdfs": (
        "HDFS 3.5.0",
        ["tests/storage/test_hdfs_storage.py::TestHdfsStorage"],
        ["tests/spark/test_hdfs.py"],
    ),
    "azurite": ("Azurite 3.35", [OTHER, "-k", "azurite"], [OTHER_SPARK, "-k", "azurite"]),
    "fake-gcs": ("fake-gcs-server 1.56", [OTHER, "-k", "fake"], [OTHER_SPARK, "-k", "fake"]),
    "moto": ("moto 5.1", [OTHER, "-k", "moto"], [OTHER_SPARK, "-k", "moto"]),
}
"""Name -> what the row says, the tests of the kit, and those of Spark. A folder and S3 have their
programs in `make test`, under many names."""


def passed(arguments: list[str]) -> str:
    """Run tests; return how many of them passed."""
    if not arguments:
        return "in `make test`"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "result.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", f"--junitxml={report}"]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=False)
        suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    count = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    ran = count["tests"] - count["skipped"]
    return f"{ran - count['failures'] - count['errors']} of {ran}"


def main() -> None:
    """Run what was asked for, and write its rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("storages", nargs="*", default=list(STORAGES), choices=STORAGES)
    for name in parser.parse_args().storages:
        title, kit, programs = STORAGES[name]
        start = time.monotonic()
        cells = (title, passed(kit), passed(programs), f"{time.monotonic() - start:.0f}")
        day = datetime.now(UTC).date().isoformat()
        PAGE.write_text(with_row(PAGE.read_text(), "matrix", HEAD, (*cells, day)))


if __name__ == "__main__":
    main()
