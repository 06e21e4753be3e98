"""Run the Spark tests on other versions of PySpark and Python; write the page of compatibility.

    python scripts/compatibility.py                            # all pairs that can be had
    python scripts/compatibility.py --spark 4.0 4.1 --python 3.12 --quick
    python scripts/compatibility.py --servers                  # only other servers of Connect

Each pair has an environment of its own, .venv-compat-<PySpark>-<Python>, made once with pip; the
newest patch of the PySpark version is installed. A Python that this machine does not have is told
and left out. The page keeps the last result of every pair.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "suite"))
from document import with_row  # noqa: E402 - the writer of tables that benchmarks have

PAGE = ROOT / "docs" / "internals" / "compatibility.md"
SPARK_VERSIONS = ("3.5", "4.0", "4.1", "4.2", "4.3")
PYTHON_VERSIONS = ("3.11", "3.12", "3.13")
HEAD = ("PySpark, Python", "exactly", "tests", "passed", "failed", "seconds", "day")
QUICK = (
    "test_repartition.py",
    "test_rows_in.py",
    "test_query.py",
    "test_query_plans.py",
    "test_plan_identity.py",
    "test_python_stage.py",
    "test_consume.py",
    "test_connect.py",
)
"""Files of tests/spark that touch each way to wrap a stage and all of Spark's internals once."""
SERVERS = {"pysail": ("4.1", ("pysail==0.7.*",))}
"""Other servers of Spark Connect -> PySpark of the client, and what to install from PyPI."""
SERVER_HEAD = (
    *("server, client", "runs", "missing"),
    *("`durable`, `checkpoint`, `repartition`, `stage`", "day"),
)
NOT_NEEDED = ("ruff", "mypy", "import-linter", "zensical", "pyright", "gcsfs", "adlfs", "durable")
"""Parts of the `dev` extra that the Spark tests do without."""


def find_python(version: str) -> str | None:
    """Return an interpreter of this version that runs, from PATH or pyenv; None: there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *pyenv.glob(f"{version}.*/bin/python{version}")]
    for candidate in filter(None, map(str, filter(None, found))):
        command = [candidate, "-c", "import venv, ssl, sqlite3"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return candidate
    return None


def needed_by_tests() -> tuple[str, ...]:
    """Return what the tests need beside the package, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    dev = project["optional-dependencies"]["dev"]
    return tuple(r for r in dev if not r.startswith(("pyspark", *NOT_NEEDED)))


def environment(spark: str, name: str, interpreter: str, extras: tuple[str, ...]) -> Path:
    """Return the interpreter of an environment; installs what is missing."""
    folder = ROOT / f".venv-compat-{name}"
    if not (folder / "bin" / "python").exists():
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
    own = folder / "bin" / "python"
    wanted = ["-e", f"{ROOT}[demo,s3]", f"pyspark[connect]=={spark}.*", *extras]
    pip = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted], check=True, cwd=ROOT)
    return own


def exact_versions(python: Path) -> str:
    """Return the versions that the environment has, in words."""
    code = "import platform, pyspark; print(pyspark.__version__, platform.python_version())"
    out = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    spark, own = out.split()
    return f"{spark} on {own}"


def run(python: Path, files: tuple[str, ...]) -> tuple[int, int, float]:
    """Run test files; return how many tests passed and failed, and the seconds."""
    report = python.parents[1] / "result.xml"
    report.unlink(missing_ok=True)
    start = time.monotonic()
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    paths = [str(ROOT / "tests" / "spark" / name) for name in files]
    subprocess.run([python, "-m", "pytest", *options, *paths], cwd=ROOT, check=False)
    seconds = time.monotonic() - start
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None
    count = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    return count["tests"] - failed - count["skipped"], failed, seconds


def try_servers() -> int:
    """Try the other servers of Spark Connect; return how many answered not as it is known."""
    failures = 0
    for name, (spark, packages) in SERVERS.items():
        own = environment(spark, name, sys.executable, packages)
        command = [own, str(ROOT / "scripts" / "other_server.py"), name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        sys.stdout.write(done.stdout)
        failures += done.returncode != 0
        if not done.stdout.strip():
            continue
        found = json.loads(done.stdout.strip().splitlines()[-1])
        refused = found["stages"] != "run"
        cells = (
            f"{found['server']}, {found['client']}",
            *(", ".join(found[what]) or "nothing" for what in ("runs", "missing")),
            "refused by name (`IncompatibleError`)" if refused else "run",
            datetime.now(UTC).date().isoformat(),
        )
        PAGE.write_text(with_row(PAGE.read_text(), "servers", SERVER_HEAD, cells))
    return failures


def main() -> int:
    """Run what was asked for; exit status 1 if a test failed or nothing could be run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--spark", nargs="+", default=SPARK_VERSIONS, metavar="4.x")
    parser.add_argument("--python", nargs="+", default=PYTHON_VERSIONS, metavar="3.x")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--tests", nargs="+", metavar="FILE", help="only these of tests/spark")
    parser.add_argument("--servers", action="store_true", help="only other servers")
    options = parser.parse_args()
    if options.servers:
        return try_servers()
    if not all(re.fullmatch(r"\d\.\d+", v) for v in (*options.spark, *options.python)):
        parser.error("versions are given as 4.1 or 3.12: the newest patch is taken")
    every = sorted(p.name for p in (ROOT / "tests" / "spark").glob("test_*.py"))
    files = tuple(options.tests or (QUICK if options.quick else every))
    ran = failures = 0
    for minor in options.python:
        interpreter = find_python(minor)
        if interpreter is None:
            sys.stdout.write(f"Python {minor}: not on this machine, left out\n")
            continue
        for spark in options.spark:
            sys.stdout.write(f"PySpark {spark}, Python {minor}\n")
            sys.stdout.flush()
            own = environment(spark, f"{spark}-{minor}", interpreter, needed_by_tests())
            passed, failed, seconds = run(own, files)
            ran, failures = ran + 1, failures + failed + (passed == 0)
            which = {QUICK: "quick", tuple(every): "all of tests/spark"}.get(files)
            which = which or ", ".join(f"`{name}`" for name in files)
            day = datetime.now(UTC).date().isoformat()
            figures = (which, str(passed), str(failed), f"{seconds:.0f}", day)
            cells = (f"{spark}, {minor}", exact_versions(own), *figures)
            PAGE.write_text(with_row(PAGE.read_text(), "matrix", HEAD, cells))
    return int(failures + try_servers() > 0 or ran == 0)


if __name__ == "__main__":
    raise SystemExit(main())
