"""The recipes of schedulers, run by the real ones: a task that is killed and retried goes on.

Each scheduler is installed from PyPI into an environment of its own beside .venv, once.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pipelines import until

from durable_shuffle.bench.cluster.faults import session_processes

ROOT = Path(__file__).parents[2]
FILES, ROWS = 40, 5000
CASES = {
    "airflow": ("apache-airflow>=3,<4", "airflow_dag.py"),
    "dagster": ("dagster>=1.11,<2", "dagster_assets.py"),
}


def environment(name: str, package: str) -> Path:
    """The `bin` folder of the scheduler's own environment; skips the test without a network."""
    folder = ROOT / f".venv-{name}"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [folder / "bin" / "pip", "install", "--quiet", package]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{package} cannot be installed: {done.stderr[-300:]}")
        (folder / "ready").touch()
    return folder / "bin"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_a_killed_task_is_retried_and_goes_on(name: str, tmp_path: Path) -> None:
    """SIGKILL of the task's whole driver in mid map side; the retry runs the map tasks left."""
    package, recipe = CASES[name]
    programs = environment(name, package)
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        customers = [(number * 7 + row) % 11 for row in range(ROWS)]
        pq.write_table(pa.table({"customer": customers}), tmp_path / "in" / f"{number}.parquet")
    settings = {
        "spark.durableShuffle.url": tmp_path / "data",
        "spark.durableShuffle.job": "nightly",
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.files.openCostInBytes": "134217728",  # one file is one map task
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [sys.executable, "-m", "durable_shuffle.jobs.cli", "run", "--max-retries", "0", "--"]
    command += [submit, *(word for k, v in settings.items() for word in ("--conf", f"{k}={v}"))]
    command += [ROOT / "recipes" / "nightly.py", tmp_path / "in", tmp_path / "out"]
    env = {
        **os.environ,
        "NIGHTLY_COMMAND": " ".join(map(str, command)),
        "NIGHTLY_DELAY": "1",
        "PYTHONPATH": "",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "recipes"),
        "DAGSTER_HOME": str(tmp_path),
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    if name == "airflow":
        subprocess.run([programs / "airflow", "db", "migrate"], env=env, check=True)
    with (tmp_path / "log").open("w") as log:
        scheduler = subprocess.Popen(
            [programs / "python", ROOT / "recipes" / recipe],
            env=env,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    slots = f"nightly/*/producers/p*/{0:010d}"
    stored = lambda: len(list((tmp_path / "data").glob(slots)))  # noqa: E731
    until(lambda: scheduler.poll() is not None or stored() >= 5, "five map tasks")
    assert scheduler.poll() is None, (tmp_path / "log").read_text()[-3000:]
    kill_driver(str(tmp_path / "out"), scheduler.pid)
    kept = stored()
    assert 5 <= kept < FILES, "the driver was too quick"
    assert scheduler.wait() == 0, (tmp_path / "log").read_text()[-3000:]
    text = (tmp_path / "log").read_text()
    (row,) = (line.split() for line in text.splitlines() if line.startswith("query-"))
    assert (row[1], row[4], row[5]) == ("resume", str(FILES - kept), str(kept))
    counts = pq.read_table(tmp_path / "out").to_pydict()
    expected = [0] * 11
    for number in range(FILES):
        for index in range(ROWS):
            expected[(number * 7 + index) % 11] += 1
    found = dict(zip(counts["customer"], counts["orders"], strict=True))
    assert found == dict(enumerate(expected))


def kill_driver(mark: str, scheduler: int) -> None:
    """SIGKILL `durable-shuffle run` and the driver below it, as if their host were gone.

    Only processes that this test started: they name its folder.
    """
    mine = {
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and mark in _command(entry)
    }
    assert len(mine) >= 3, "the command, the JVM and Python"
    for pid in mine:
        os.kill(pid, signal.SIGKILL)
    assert session_processes(scheduler), "the scheduler lives"


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
