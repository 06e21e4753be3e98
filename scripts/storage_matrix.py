"""Run the kit and Spark's programs on every storage; write a table of docs/internals/storage.md.

    .venv/bin/python scripts/storage_matrix.py [azurite ...]

Each storage gets one row: how many tests of the conformance kit passed, and of three of Spark: a
driver is killed and resumed, a join query and README's program run twice.
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
HEAD = ("storage", "kit", "a kill and resume, a join twice, README twice", "seconds", "day")
OTHER = "tests/storage/test_other_servers.py"
SPARK = "tests/spark/test_each_storage.py"
STORAGES: dict[str, tuple[str, list[str]]] = {
    "local": ("local folder", ["tests/storage/test_local_storage.py::TestLocalStorage"]),
    "seaweedfs": ("SeaweedFS 4.48", ["tests/storage/test_s3_storage.py::TestS3Storage"]),
    "hdfs": ("HDFS 3.5.0", ["tests/storage/test_hdfs_storage.py::TestHdfsStorage"]),
    "azurite": ("Azurite 3.35", [OTHER, "-k", "azurite"]),
    "fake-gcs": ("fake-gcs-server 1.56", [OTHER, "-k", "fake-gcs"]),
    "moto": ("moto 5.1", [OTHER, "-k", "moto"]),
    "minio": ("MinIO of 2026-02-12", [OTHER, "-k", "minio"]),
}
"""Name -> what the row says, and the tests of the kit; Spark's have the name in theirs."""


def passed(arguments: list[str]) -> str:
    """Run tests; return how many of them passed."""
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
    parser.add_argument("storages", nargs="*", help=f"some of {', '.join(STORAGES)}; default: all")
    wanted = parser.parse_args().storages
    if unknown := set(wanted) - set(STORAGES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    for name in wanted or STORAGES:
        title, kit = STORAGES[name]
        start = time.monotonic()
        programs = passed([SPARK, "-k", name])
        cells = (title, passed(kit), programs, f"{time.monotonic() - start:.0f}")
        day = datetime.now(UTC).date().isoformat()
        PAGE.write_text(with_row(PAGE.read_text(), "matrix", HEAD, (*cells, day)))


if __name__ == "__main__":
    main()
