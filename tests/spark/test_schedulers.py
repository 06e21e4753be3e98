"""Schedulers, dbt and notebooks, the real ones: what is killed and started again goes on.

Each is installed from PyPI into an environment of its own beside .venv, once.
"""

import json
import os
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
import table_session
from pipelines import until

from durable_shuffle.bench.cluster.faults import session_processes

ROOT = Path(__file__).parents[2]
FILES, ROWS = 40, 5000
CASES = {
    "airflow": ("apache-airflow>=3,<4", "airflow_dag.py"),
    "dagster": ("dagster>=1.11,<2", "dagster_assets.py"),
}


def environment(name: str, *packages: str) -> Path:
    """The `bin` folder of an environment with these packages; skips the test without a network."""
    folder = ROOT / f".venv-{name}"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        install = [folder / "bin" / "pip", "install", "--quiet", *packages]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{packages} cannot be installed: {done.stderr[-300:]}")
        (folder / "ready").touch()
    return folder / "bin"


def beside_spark(name: str, *packages: str) -> Path:
    """A Python that has these packages, and after them all that the tests' own Python has."""
    python = environment(name, *packages) / "python"
    script = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    its = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout
    ours = sysconfig.get_paths()["purelib"]
    Path(its.strip(), "zz_spark.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return python


def write_orders(folder: Path) -> None:
    """Write one file per map task."""
    folder.mkdir()
    for number in range(FILES):
        customers = [(number * 7 + row) % 11 for row in range(ROWS)]
        pq.write_table(pa.table({"customer": customers}), folder / f"{number}.parquet")


def counted_right(files: Path | list[Path], times: int = 1) -> bool:
    """Compare what a recipe wrote with what its orders say, each of them so many times."""
    counts = pq.read_table(files).to_pydict()
    expected = [0] * 11
    for number in range(FILES):
        for index in range(ROWS):
            expected[(number * 7 + index) % 11] += times
    return dict(zip(counts["customer"], counts["orders"], strict=True)) == dict(enumerate(expected))


def settings_for(folder: Path) -> list[str]:
    """Return the settings of a run that stores below `folder`, as for spark-submit."""
    settings = {
        "spark.durableShuffle.url": folder / "data",
        "spark.durableShuffle.job": "nightly",
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.files.openCostInBytes": "134217728",  # one file is one map task
        "spark.sql.warehouse.dir": folder / "warehouse",
    }
    return [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]


def stored(folder: Path) -> int:
    """How many map tasks have committed."""
    return len(list((folder / "data").glob(f"nightly/*/producers/p*/{0:010d}")))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CASES)
def test_a_killed_task_is_retried_and_goes_on(name: str, tmp_path: Path) -> None:
    """SIGKILL of the task's whole driver in mid map side; the retry runs the map tasks left."""
    package, recipe = CASES[name]
    programs = environment(name, package)
    write_orders(tmp_path / "in")
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [sys.executable, "-m", "durable_shuffle.jobs.cli", "run", "--max-retries", "0", "--"]
    command += [submit, *settings_for(tmp_path), ROOT / "recipes" / "nightly.py"]
    command += [tmp_path / "in", tmp_path / "out"]
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
    until(lambda: scheduler.poll() is not None or stored(tmp_path) >= 5, "five map tasks")
    assert scheduler.poll() is None, (tmp_path / "log").read_text()[-3000:]
    kill_driver(str(tmp_path / "out"), scheduler.pid)
    kept = stored(tmp_path)
    assert 5 <= kept < FILES, "the driver was too quick"
    assert scheduler.wait() == 0, (tmp_path / "log").read_text()[-3000:]
    went_on(tmp_path / "log", kept)
    assert counted_right(tmp_path / "out")


def went_on(log: Path, kept: int) -> None:
    """The report of the run that was not killed names what it ran and what it found."""
    reported = (line.split() for line in log.read_text().splitlines() if line.startswith("query-"))
    rows = ((row[1], int(row[-7]), int(row[-6])) for row in reported)  # action, run, reused
    found = next((action, run, kept) for action, run, kept in rows if run + kept == FILES)
    assert found == ("resumed", FILES - kept, kept)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_dbt_project_goes_on(tmp_path: Path) -> None:
    """SIGKILL of dbt with Spark in its process, in the middle of a table model; the next run
    computes only what is missing, and gives the tables that dbt gives without a block."""
    write_orders(tmp_path / "in")
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    dbt_killed_and_again(tmp_path, {"PYTHONPATH": ""}, settings_for(tmp_path))
    tables = tmp_path / "warehouse" / "nightly.db"
    assert counted_right(tables / "order_counts")
    sizes = pq.read_table(tables / "order_sizes").to_pydict()
    assert [*map(int, sizes["customers"]), *map(int, sizes["size"])] == [11, 18]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_dbt_model_that_merges_goes_on(tmp_path: Path) -> None:
    """An incremental model on Delta: SIGKILL in the middle of the query that it merges. The next
    run computes what is missing of it and merges, and the table's history names the job."""
    _, jars, env = table_session.found()
    tables = runpy.run_path(str(Path(__file__).parent / "programs" / "tables_driver.py"))
    settings = tables["settings"](tmp_path, jars)
    words = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    settings_of_run = [*words, *settings_for(tmp_path)]
    write_orders(tmp_path / "in")
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    project = tmp_path / "recipes" / "dbt"
    for model in ("order_counts.sql", "order_sizes.sql", "schema.yml"):
        (project / "models" / model).unlink()
    config = 'materialized="incremental", incremental_strategy="merge", unique_key="customer"'
    (project / "models" / "counts.sql").write_text(
        f'{{{{ config({config}, file_format="delta") }}}}\n'
        'select customer, count(*) as orders from {{ ref("orders") }} group by customer'
    )
    whole = start_dbt(tmp_path, env, settings_of_run, "whole")
    assert whole.wait() == 0, (tmp_path / "whole").read_text()[-3000:]
    for file in (tmp_path / "in").iterdir():  # other rows of the same customers
        pq.write_table(pa.concat_tables([pq.read_table(file)] * 2), file)
    dbt_killed_and_again(tmp_path, env, settings_of_run, before=FILES)
    log = tmp_path / "warehouse" / "nightly.db" / "counts" / "_delta_log"
    texts = [text for file in sorted(log.glob("*.json")) for text in file.read_text().splitlines()]
    actions = [action for text in texts for action in json.loads(text).items()]
    newest = [what for kind, what in actions if kind == "commitInfo"][-1]
    assert newest["operation"] == "MERGE"
    assert json.loads(newest["userMetadata"])["job"] == "nightly"
    gone = {what["path"] for kind, what in actions if kind == "remove"}
    files = [what["path"] for kind, what in actions if kind == "add" and what["path"] not in gone]
    assert counted_right([log.parent / file for file in files], times=2)


def start_dbt(
    folder: Path, env: dict[str, str], settings: list[str], log: str
) -> "subprocess.Popen[bytes]":
    """Start the recipe below `folder`; what it says goes to the file `log`."""
    python = beside_spark("dbt", "dbt-core>=1.9,<1.12", "dbt-spark>=1.9,<2")
    more = {
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*settings, "pyspark-shell"]),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "0",
        "DBT_USE_COLORS": "0",
    }
    command = [python, folder / "recipes" / "dbt_nightly.py", folder / "in"]
    with (folder / log).open("w") as said:
        return subprocess.Popen(
            command,
            env={**os.environ, **env, **more},
            stdout=said,
            stderr=said,
            cwd=folder,
            start_new_session=True,
        )


def dbt_killed_and_again(
    folder: Path, env: dict[str, str], settings: list[str], before: int = 0
) -> None:
    """Kill dbt in the middle of a map side, start it again, and see that it goes on.

    Args:
        before: how many map tasks have committed already.
    """
    first = start_dbt(folder, env, settings, "first")
    until(lambda: first.poll() is not None or stored(folder) >= before + 5, "five map tasks")
    assert first.poll() is None, (folder / "first").read_text()[-3000:]
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = stored(folder) - before
    assert 5 <= kept < FILES, "the driver was too quick"
    second = start_dbt(folder, env, settings, "second")
    assert second.wait() == 0, (folder / "second").read_text()[-3000:]
    went_on(folder / "second", kept)


NOTEBOOK = """
import json, sys
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

notebook = new_notebook(cells=[new_code_cell(text) for text in json.load(sys.stdin)])
NotebookClient(notebook, timeout=600).execute()
print(json.dumps([cell.outputs for cell in notebook.cells]))
"""


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_notebook_goes_on(tmp_path: Path) -> None:
    """The page's cell and a function of the notebook, in a kernel that is killed and in another."""
    python = beside_spark("jupyter", "nbclient>=0.10,<1", "ipykernel>=6,<8")
    page = (ROOT / "docs" / "platforms" / "notebooks.md").read_text()
    cells = [
        "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()",
        page.partition("```python\n")[2].partition("```")[0],
        "def same(batches):\n    yield from batches",
        "shuffle.checkpoint(spark.range(9).mapInArrow(same, 'id long'), progress=True)",
        "shuffle.report()",
    ]
    env = {
        **os.environ,
        "PYTHONPATH": "",
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*settings_for(tmp_path), "pyspark-shell"]),
    }

    def run(*more: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [python, "-c", NOTEBOOK],
            input=json.dumps([*cells, *more]),
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    killed = run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert "DeadKernelError" in killed.stderr, killed.stderr[-3000:]
    again = run("print([stage.action for stage in shuffle.report().stages])")
    assert again.returncode == 0, again.stderr[-3000:]
    *_, report, last = json.loads(again.stdout.splitlines()[-1])
    assert last[0]["text"] == "['reused', 'reused']\n"
    assert "<table" in report[0]["data"]["text/html"]


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
