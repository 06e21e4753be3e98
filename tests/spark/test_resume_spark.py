"""A second run reuses what the first one committed, and nothing else runs.

The user's own map function counts producer runs in files; the report alone is never trusted. File
names show which producers had committed.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from killed_driver import killed_and_resumed
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import IncompatibleError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

Rows = list[tuple[Any, ...]]


def rows_of(df: DataFrame) -> Rows:
    return sorted(tuple(row) for row in df.collect())


def numbers(session: SparkSession, partitions: int = 4) -> DataFrame:
    return session.range(0, 40, 1, partitions).selectExpr("id % 7 as k", "id as v")


EXPECTED = sorted((i % 7, i) for i in range(40))


@pytest.mark.sampled(1)
@pytest.mark.also_with_storage_faults
@pytest.mark.requirement("R-F135-19")
def test_resume_calls_no_producer(session: SparkSession, root: str, counter: Any) -> None:
    """A failing consumer, a second read and a second driver do not run the producers again."""
    df = numbers(session).mapInArrow(counter.function, "k long, v long")
    out = DurableShuffle(session, root, job="tests").repartition(df, 3, "k")
    once = dict.fromkeys(range(4), 1)
    assert counter.runs() == once

    def fail(batches: Any) -> Any:
        for _ in batches:
            raise RuntimeError("the consumer fails")
        return iter(())

    with pytest.raises(PythonException, match="the consumer fails"):
        out.mapInArrow(fail, "k long").collect()
    assert rows_of(out) == EXPECTED
    again = DurableShuffle(session, root, job="tests")
    assert again.explain.repartition(df, 3, "k").stored
    assert rows_of(again.repartition(df, 3, "k")) == EXPECTED
    assert counter.runs() == once
    (stage,) = again.report().stages
    assert (stage.action, stage.map_tasks, stage.map_tasks_run) == ("reused", 4, 0)
    assert (stage.map_tasks_reused, stage.map_tasks_rerun, stage.retries) == (4, 0, 0)


@pytest.mark.sampled(1)
@pytest.mark.also_with_storage_faults
def test_only_missing_producers_run(
    session: SparkSession,
    root: str,
    counter: Any,
    breaker: Any,
    committed_producers: Callable[[str], set[int]],
) -> None:
    """After a failed map stage, the next driver runs exactly the producers without a COMMIT."""
    df = numbers(session).mapInArrow(counter.function, "k long, v long")
    df = df.mapInArrow(breaker.function(3, after=3), "k long, v long")
    with pytest.raises(Exception, match="broken on purpose"):
        DurableShuffle(session, root, job="tests").repartition(df, 3, "k")
    before, committed = counter.runs(), committed_producers(root)
    assert committed == {0, 1, 2}
    breaker.mend()
    shuffle = DurableShuffle(session, root, job="tests")
    explained = shuffle.explain.repartition(df, 3, "k")
    assert (explained.stored, explained.stages[0].status) == (False, "partial")
    assert "3 map tasks are stored" in explained.why
    assert counter.runs() == before, "explain runs nothing"
    assert rows_of(shuffle.repartition(df, 3, "k")) == EXPECTED
    assert (before, counter.runs()) == (dict.fromkeys(range(4), 1), {0: 1, 1: 1, 2: 1, 3: 2})
    (stage,) = shuffle.report().stages
    assert (stage.action, stage.map_tasks, stage.map_tasks_run) == ("resumed", 4, 1)
    assert (stage.map_tasks_reused, stage.map_tasks_rerun) == (3, 0)


@pytest.mark.requirement("R-F135-19")
def test_killed_driver_is_finished_by_one_with_other_cores(
    tmp_path: Path, root: str, programs: Any, committed_producers: Callable[[str], set[int]]
) -> None:
    """A driver with one core continues from the commits of a driver that was SIGKILLed in its map.

    On its own, one core would read these files as one split; four cores read them as four.
    """
    stage = killed_and_resumed(programs, root, tmp_path, committed_producers)
    assert (stage["map_tasks_reused"], stage["map_tasks_rerun"]) == (3, 0)


@pytest.fixture(scope="module")
def reruns(programs: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Answers of three processes: the first run, the same again, and with all inputs changed."""
    folder = tmp_path_factory.mktemp("reruns")
    table, module = folder / "table.parquet", folder / "helper.py"
    pq.write_table(pa.table({"v": [1, 2, 3]}), table)
    module.write_text("def change(value):\n    return value + 1\n")
    path = f"{Path(__file__).parents[2] / 'src'}{os.pathsep}{folder}"
    # compiled files are compared by whole seconds and size, which are equal here
    env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    arguments = (folder / "root", folder)
    answers = [programs.run("rerun", *arguments, 3, env=env) for _ in range(2)]
    table.unlink()
    pq.write_table(pa.table({"v": [1, 2, 4]}), table)
    module.write_text("def change(value):\n    return value + 2\n")
    return [*answers, programs.run("rerun", *arguments, 4, env=env)]


CHANGED = {
    "module": ("functions", [1, 2, 3, 4], [2, 3, 4, 5]),
    "file": ("files", [1, 2, 3], [1, 2, 4]),
    "pandas": ("rows", [1, 2, 3], [1, 2, 4]),
    "arrow": ("rows", [1, 2, 3], [1, 2, 4]),
}


@pytest.mark.parametrize("stage", [*CHANGED, "steady"])
def test_same_inputs_are_reused_by_another_process(reruns: list[Any], stage: str) -> None:
    """Another process with equal inputs runs no producer and reads the same rows."""
    first, second, _ = (answer[stage] for answer in reruns)
    assert (first["action"], first["stored"]) == ("computed", False)
    assert (second["action"], second["stored"]) == ("reused", True)
    assert (second["map_tasks_run"], second["map_tasks_rerun"]) == (0, 0)
    assert second["map_tasks_reused"] == first["map_tasks_run"] > 0
    assert second["rows"] == first["rows"]


@pytest.mark.parametrize("stage", CHANGED)
def test_changed_input_makes_a_fresh_stage_and_is_named(reruns: list[Any], stage: str) -> None:
    """A change of a module, file or local row is noticed, and the reason names it."""
    aspect, before, after = CHANGED[stage]
    first, _, third = (answer[stage] for answer in reruns)
    assert (third["action"], third["stored"]) == ("computed", False)
    assert third["why"] == f"differs from the stored stage in: {aspect}"
    assert third["map_tasks_reused"] == 0
    assert (first["rows"], third["rows"]) == (before, after)


def test_unchanged_stage_is_reused_beside_changed_ones(reruns: list[Any]) -> None:
    """An unchanged stage stays stored even if everything around it changed."""
    stage = reruns[2]["steady"]
    assert (stage["action"], stage["map_tasks_run"], stage["rows"]) == ("reused", 0, [0, 2, 4, 6])


def test_rdd_source_is_fresh_each_time_and_says_why(reruns: list[Any]) -> None:
    """An unrecognisable input is never reused, and the message names the solution."""
    for answer in reruns:
        stage = answer["rdd"]
        assert (stage["action"], stage["stored"], stage["map_tasks_reused"]) == (
            "computed",
            False,
            0,
        )
        assert "a checkpointed DataFrame (v) cannot be recognised in another run" in stage["why"]
        assert "version=" in stage["why"]
    assert reruns[2]["rdd"]["rows"] == [1, 2, 4]


def test_version_vouches_for_an_rdd_source(
    session: SparkSession, root: str, tmp_path: Path
) -> None:
    """Equal versions are reused; another version makes a fresh stage that names the version."""

    def run(version: str, last: int) -> tuple[str, str, list[int]]:
        (tmp_path / "numbers").write_text(f"1\n{last}\n")
        rdd = session.sparkContext.textFile(str(tmp_path / "numbers"), 2)
        df = session.createDataFrame(rdd.map(lambda line: (int(line),)), "v long")
        shuffle = DurableShuffle(session, root, job="tests", version=version)
        out = shuffle.repartition(df, 2, "v")
        (stage,) = shuffle.report().stages
        return stage.action, stage.why, sorted(row.v for row in out.collect())

    assert run("1", 2)[0::2] == ("computed", [1, 2])
    assert run("1", 3)[0::2] == ("reused", [1, 2]), "the user vouched, so stored rows count"
    decision, why, rows = run("2", 3)
    assert (decision, rows) == ("computed", [1, 3])
    assert "version" in why


def test_reuse_never_starts_afresh(session: SparkSession, root: str, counter: Any) -> None:
    """`reuse="never"` runs all producers in a new incarnation, although they are committed."""
    df = numbers(session, 2).mapInArrow(counter.function, "k long, v long")
    DurableShuffle(session, root, job="tests").repartition(df, 3, "k")
    never = DurableShuffle(session, root, job="tests", reuse="never")
    assert rows_of(never.repartition(df, 3, "k")) == EXPECTED
    assert counter.runs() == {0: 2, 1: 2}
    (stage,) = never.report().stages
    assert (stage.action, stage.map_tasks_reused, stage.map_tasks_rerun) == ("computed", 0, 0)
    assert "never" in stage.why
    assert len({info.incarnation for info in never.stages()}) == 2


def test_reuse_require_runs_nothing_unknown(session: SparkSession, root: str, counter: Any) -> None:
    """`reuse="require"` refuses a stage that is not stored, and reads one that is."""
    df = numbers(session, 2).mapInArrow(counter.function, "k long, v long")
    require = DurableShuffle(session, root, job="tests", reuse="require")
    with pytest.raises(IncompatibleError, match="no stage named 'repartition'"):
        require.repartition(df, 3, "k")
    assert counter.runs() == {}
    assert require.stages() == []
    DurableShuffle(session, root, job="tests").repartition(df, 3, "k")
    require = DurableShuffle(session, root, job="tests", reuse="require")
    assert rows_of(require.repartition(df, 3, "k")) == EXPECTED
    with pytest.raises(IncompatibleError, match="partitioning"):
        require.repartition(df, 4, "k")
    assert counter.runs() == {0: 1, 1: 1}


def test_other_request_on_the_same_rows_is_another_stage(session: SparkSession, root: str) -> None:
    """Keys, and number and kind of partitions, belong to the identity; so does the label."""
    df = numbers(session, 2)
    shuffle = DurableShuffle(session, root, job="tests")
    shuffle.repartition(df, 3, "k")
    requests: list[tuple[Any, ...]] = [(3, "v"), (2, "k"), (3, "k", "v"), (3,)]
    for request in requests:
        explained = shuffle.explain.repartition(df, *request)
        assert not explained.stored
        assert explained.why == "differs from the stored stage in: partitioning"
    assert not shuffle.explain.repartition(df, 3, "k", name="other").stored
    assert shuffle.explain.repartition(df, 3, df.k).stored


def test_setting_that_changes_rows_makes_a_fresh_stage(session: SparkSession, root: str) -> None:
    """The session's time zone decides which time a text means."""
    shuffle = DurableShuffle(session, root, job="tests")

    def seconds(zone: str) -> tuple[str, set[int]]:
        session.conf.set("spark.sql.session.timeZone", zone)
        df = session.range(2).selectExpr("id", "to_timestamp('2024-06-01 12:00:0' || id) as t")
        rows = shuffle.repartition(df, 2, "id").selectExpr("unix_seconds(t) as s").collect()
        return shuffle.report().stages[-1].why, {row.s for row in rows}

    noon = 1_717_243_200
    assert seconds("UTC")[1] == {noon, noon + 1}
    why, found = seconds("America/New_York")
    assert "settings" in why
    assert found == {noon + 4 * 3600, noon + 4 * 3600 + 1}


def test_random_rows_below_an_exchange_are_never_mixed(
    session: SparkSession,
    root: str,
    counter: Any,
    breaker: Any,
    committed_producers: Callable[[str], set[int]],
) -> None:
    """Commits of a run with a random exchange are of no use to another run."""
    df = session.range(0, 40, 1, 2).repartition(3, F.floor(F.rand(7) * 1000))
    df = df.mapInArrow(counter.function, "id long").mapInArrow(
        breaker.function(2, after=2), "id long"
    )
    with pytest.raises(Exception, match="broken on purpose"):
        DurableShuffle(session, root, job="tests").repartition(df, 3, "id")
    assert committed_producers(root) == {0, 1}
    breaker.mend()
    shuffle = DurableShuffle(session, root, job="tests")
    out = shuffle.repartition(df, 3, "id")
    assert sorted(row.id for row in out.collect()) == list(range(40))
    (stage,) = shuffle.report().stages
    assert (stage.action, stage.map_tasks_run, stage.map_tasks_reused) == ("computed", 3, 0)
    assert "rand below a native exchange" in stage.why
    assert "must not mix" in stage.why
    assert stage.native_exchanges == 1
    assert counter.runs() == dict.fromkeys(range(3), 2)
    sealed = DurableShuffle(session, root, job="tests")
    assert sorted(row.id for row in sealed.repartition(df, 3, "id").collect()) == list(range(40))
    assert sealed.report().stages[0].action == "reused", "one run, whole, is reused"


@pytest.mark.sampled(1)
@pytest.mark.also_with_storage_faults
def test_stage_on_a_stage_is_reused(session: SparkSession, root: str, counter: Any) -> None:
    """A stage that reads another stage of the job is recognised through it."""

    def run() -> tuple[Rows, list[str]]:
        shuffle = DurableShuffle(session, root, job="tests")
        df = numbers(session, 2).mapInArrow(counter.function, "k long, v long")
        first = shuffle.repartition(df, 3, "k", name="first")
        second = shuffle.repartition(first.groupBy("k").count(), 2, "count", name="second")
        return rows_of(second), [stage.action for stage in shuffle.report().stages]

    expected = sorted((k, len(range(k, 40, 7))) for k in range(7))
    assert run() == (expected, ["computed", "computed"])
    assert run() == (expected, ["reused", "reused"])
    assert counter.runs() == {0: 1, 1: 1}


@pytest.mark.also_with_storage_faults
def test_release_frees_the_data_and_the_next_run_is_fresh(session: SparkSession, root: str) -> None:
    """A released stage is gone for good: its reader says so, and a new run creates a new one."""
    df = numbers(session, 2)
    shuffle = DurableShuffle(session, root, job="tests")
    out = shuffle.repartition(df, 3, "k")
    stored = sum(p.stat().st_size for p in Path(root).rglob("*.seg"))
    assert stored > 0
    (freed,) = shuffle.release("repartition")
    assert freed.data_bytes >= stored
    assert list(Path(root).rglob("*.seg")) == []
    assert shuffle.stages() == []
    with pytest.raises(PythonException, match="released"):
        out.collect()
    assert rows_of(shuffle.repartition(df, 3, "k")) == EXPECTED
    assert shuffle.report().stages[-1].action == "computed"
