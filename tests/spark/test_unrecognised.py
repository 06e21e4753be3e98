"""Rows of other inputs than the fingerprint names: good for the call that read them alone."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.engine.tasks import MapJob
from durable_shuffle.jobs.identity.plan import files
from durable_shuffle.jobs.stages.producer_runs import ProducerRuns
from durable_shuffle.jobs.stages.work import FrameWork

pytestmark = pytest.mark.spark

CALLS: dict[str, Callable[[Any, DataFrame], Any]] = {
    "checkpoint": lambda s, df: s.checkpoint(df, name="b"),
    "repartition": lambda s, df: s.repartition(df, 3, "_c0", name="b"),
    "query": lambda s, df: s.query(df.groupBy("_c0").agg(F.count("*").alias("n")), name="b"),
    "stage": lambda s, df: s.stage(df, keys="_c0", num_partitions=3, name="b"),
}


class Gate:
    """Acts once, when the inputs are known and before any row is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.act: Callable[[], object] | None = None
        write = ProducerRuns._write

        def writing(runs: ProducerRuns, *args: Any, **named: Any) -> Any:
            act, self.act = self.act, None
            if act is not None:
                act()
            return write(runs, *args, **named)

        monkeypatch.setattr(ProducerRuns, "_write", writing)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


def replace_file(path: Path, text: str, like: os.stat_result | None = None) -> None:
    """Put a new file in its place, with the times of `like`."""
    new = path.with_name(".new")
    new.write_text(text)
    if like is not None:
        os.utime(new, ns=(like.st_atime_ns, like.st_mtime_ns))
    new.rename(path)


def keys(df: DataFrame) -> list[str]:
    return sorted(row["_c0"] for row in df.select("_c0").collect())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("count", [1, 12])
def test_rows_of_a_file_that_was_replaced_are_not_those_of_the_old_one(
    spark: SparkSession,
    root: str,
    tmp_path: Path,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    count: int,
) -> None:
    """On a storage that tells no more than length and time, the old file comes back as it was: the
    call that read the new one gets its rows, `explain` names the file, and the next run reads."""
    monkeypatch.setattr(files, "_of_this_machine", lambda _: ())
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(count):
        (folder / f"{n}.csv").write_text(f"a{n:02}\n")
    path, old = folder / "0.csv", (folder / "0.csv").stat()

    def run() -> tuple[str, list[str], str]:
        shuffle = DurableShuffle(spark, root, job="tests")
        found = keys(CALLS[call](shuffle, spark.read.csv(str(folder))))
        stage = shuffle.report().stages[0]
        return stage.action, found, stage.why

    others = [f"a{n:02}" for n in range(1, count)]
    gate.act = lambda: replace_file(path, "new\n")
    decision, found, why = run()
    assert gate.act is None
    assert (decision, found) == ("computed", [*others, "new"])
    assert str(path) in why
    replace_file(path, "a00\n", like=old)
    shuffle = DurableShuffle(spark, root, job="tests")
    explained = CALLS[call](shuffle.explain, spark.read.csv(str(folder)))
    assert not explained.stored
    assert str(path) in str(explained)
    decision, found, why = run()
    assert (decision, found) == ("computed", ["a00", *others])
    assert str(path) in why
    assert run()[:2] == ("reused", ["a00", *others])


def test_a_frame_that_keeps_an_old_listing_is_not_recognised(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """A DataFrame made before its file was replaced reads the new rows, with the cached frame
    beside it the old ones; neither is found under the identity of a file."""
    path = tmp_path / "0.csv"
    path.write_text("old\n")
    plain, cached = spark.read.csv(str(path)), spark.read.csv(str(path)).select("_c0", "_c0")
    assert cached.cache().count() == 1
    replace_file(path, "newer\n")
    for df in (plain, cached):
        shuffle = DurableShuffle(spark, root, job="tests")
        want = sorted(map(tuple, df.collect()))
        assert sorted(map(tuple, shuffle.checkpoint(df, name="b").collect())) == want
        assert str(path) in shuffle.report().stages[-1].why
    cached.unpersist()


def test_what_is_built_on_such_rows_is_not_recognised_either(
    spark: SparkSession, root: str, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The upper stages of the query and a stage of the checkpoint are for that call alone, too."""
    monkeypatch.setattr(files, "_of_this_machine", lambda _: ())
    path = tmp_path / "0.csv"
    path.write_text("a\na\nb\n")
    old = path.stat()

    def run() -> tuple[list[str], list[str], list[int]]:
        shuffle = DurableShuffle(spark, root, job="tests")
        df = shuffle.checkpoint(spark.read.csv(str(path)), name="lower")
        upper = shuffle.repartition(df, 2, "_c0", name="upper")
        counts = spark.read.csv(str(path)).groupBy("_c0").count()
        query = shuffle.query(counts.groupBy("count").agg(F.count("*").alias("n")), name="q")
        decisions = [stage.action for stage in shuffle.report().stages]
        return decisions, keys(upper), sorted(row["count"] for row in query.collect())

    gate.act = lambda: replace_file(path, "cc\nc\n")
    assert run() == (["computed"] * 4, ["c", "cc"], [1])
    assert gate.act is None
    replace_file(path, "a\na\nb\n", like=old)
    assert run() == (["computed"] * 4, ["a", "a", "b"], [1, 2])
    decisions, *same = run()
    assert set(decisions) == {"reused"}
    assert same == [["a", "a", "b"], [1, 2]]


def test_rows_of_two_times_are_not_mixed(
    spark: SparkSession, root: str, tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on with a half-written stage starts again if a file changes meanwhile."""
    for n in range(2):
        (tmp_path / f"{n}.csv").write_text(f"old{n}\n")
    write = FrameWork.write

    def half(work: Any, planned: Any, tasks: Any, job: MapJob) -> Any:
        write(work, planned, tasks, replace(job, producers=job.producers[:1]))
        raise KeyboardInterrupt

    def read() -> DataFrame:
        one, other = (spark.read.csv(str(tmp_path / f"{n}.csv")) for n in range(2))
        return one.union(other)

    monkeypatch.setattr(FrameWork, "write", half)
    with pytest.raises(KeyboardInterrupt):
        DurableShuffle(spark, root, job="tests").checkpoint(read(), name="b")
    monkeypatch.setattr(FrameWork, "write", write)

    def both() -> None:
        for n in range(2):
            replace_file(tmp_path / f"{n}.csv", f"new{n}\n")

    gate.act = both
    shuffle = DurableShuffle(spark, root, job="tests")
    assert keys(shuffle.checkpoint(read(), name="b")) == ["new0", "new1"]
    assert gate.act is None
    assert "changed while they were stored" in shuffle.report().stages[-1].why


def test_a_file_with_its_old_length_and_time_is_another_file(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """A file that was put in its place, one that was written over, and a link to another one."""
    path, link = tmp_path / "0.csv", tmp_path / "link.csv"
    path.write_text("a\n")
    like = path.stat()
    other = tmp_path / "other.csv"
    replace_file(other, "d\n", like=like)
    link.symlink_to(path)

    def run(of: Path) -> tuple[str, list[str]]:
        shuffle = DurableShuffle(spark, root, job="tests")
        found = keys(shuffle.checkpoint(spark.read.csv(str(of)), name="b"))
        return shuffle.report().stages[-1].action, found

    assert run(path) == ("computed", ["a"])
    assert run(link) == ("computed", ["a"])
    link.unlink()
    link.symlink_to(other)
    assert run(link) == ("computed", ["d"])
    replace_file(path, "b\n", like=like)
    assert run(path) == ("computed", ["b"])
    path.write_text("c\n")
    os.utime(path, ns=(like.st_atime_ns, like.st_mtime_ns))
    assert run(path) == ("computed", ["c"])
    assert run(path) == ("reused", ["c"])
