"""What Python workers receive: this exact code once per application, and batches of any size."""

from pathlib import Path

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.deploy import ship as ship_module
from durable_shuffle.jobs.deploy.running_code import code_in, running_code
from durable_shuffle.jobs.engine import tasks
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.jobs.engine.engine import Planned
from durable_shuffle.jobs.engine.transfer import LARGE_BATCH_BYTES, ROWS_PER_BATCH
from durable_shuffle.jobs.stages import producer_runs
from durable_shuffle.serialization.errors import IncompatibleError

pytestmark = pytest.mark.spark
ROW_BYTES = 20_000


@pytest.fixture
def shuffle(session: SparkSession, root: str) -> DurableShuffle:
    """A separate job, whose rows go through Python workers."""
    return DurableShuffle(session, root, job="tests", rows_in="python")


def test_first_archive_stays(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later calls in an application do not add a second archive."""
    ship_module.ship(session)

    def never(folder: Path) -> Path:
        raise AssertionError(f"made again in {folder}")

    monkeypatch.setattr(ship_module, "make_archive", never)
    ship_module.ship(session)
    archives = [code_in(f) for f in session.sparkContext.listFiles if code_in(f)]
    assert archives == [running_code()]


def test_tasks_refuse_to_run_other_code(
    session: SparkSession, shuffle: DurableShuffle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Map tasks and reading tasks compare digests, not versions."""
    stored = shuffle.repartition(session.range(10), 2, "id")
    other = f"{running_code()[:-1]}x"
    for module in (
        producer_runs,
        tasks,
    ):  # the driver's digest, for tasks that write and tasks that read
        monkeypatch.setattr(module, "running_code", lambda: other)
    with pytest.raises(IncompatibleError, match=other):
        shuffle.repartition(session.range(11), 2, "id")
    with pytest.raises(PythonException, match=f"IncompatibleError(.|\n)*{other}"):
        shuffle.repartition(session.range(10), 2, "id").count()
    assert stored.count() == 10


def test_long_strings_travel_in_limited_batches(
    session: SparkSession, shuffle: DurableShuffle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a producer that meets too large a batch is planned again, once, with Spark's limit."""
    assert ROW_BYTES * ROWS_PER_BATCH > LARGE_BATCH_BYTES
    plans: list[bool] = []
    plan = ClassicEngine.plan

    def spy(*args: object, large_rows: bool, **kwargs: object) -> Planned:
        plans.append(large_rows)
        return plan(*args, large_rows=large_rows, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ClassicEngine, "plan", spy)
    rows = 2 * ROWS_PER_BATCH
    # producer 0 has short strings and commits at once, producer 1 long ones
    text = F.repeat(F.lit("x"), F.when(F.col("id") < rows, 1).otherwise(ROW_BYTES))
    df = session.range(0, 2 * rows, 1, 2).withColumn("text", text)
    stored = shuffle.repartition(df, 4, "id")
    found = stored.agg(F.count("*"), F.sum("id"), F.sum(F.length("text"))).first()
    assert found == (2 * rows, rows * (2 * rows - 1), rows * (1 + ROW_BYTES))
    assert plans == [False, True]
    report = shuffle.report().stages[-1]
    assert (report.map_tasks, report.map_tasks_run, report.map_tasks_rerun) == (2, 2, 0)
