"""A driver waits for few requests one after the other: over a network each costs a round trip."""

import threading
from functools import partial, reduce
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from round_trips import counted_rounds, folders_are_far

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs import claims
from durable_shuffle.jobs.engine import classic
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.serialization.errors import FencedError
from durable_shuffle.shuffle.storage.local import LocalStorage

pytestmark = pytest.mark.spark

_CLAIM = ("put_if_absent", "rounds/log/")


def test_rounds_of_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storing a new stage and finding a stored one take so many rounds, whatever is in flight."""
    folders_are_far(monkeypatch)
    found = []
    for _ in range(2):
        with DurableShuffle(spark, str(tmp_path), job="rounds") as shuffle:
            df = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 7 AS k")
            shuffle.checkpoint(df, name="tiny")
            with counted_rounds(monkeypatch) as rounds:
                shuffle.checkpoint(df.where("k > 1"), name="tiny")
            assert rounds.requests
            found.append(rounds)
    stored, again = found
    # DESCRIBE, STAGE; behind the map side: the job's log and its floors, beside them index and SEAL
    assert stored.ended <= 4, stored.requests
    # DESCRIBE beside the log, STAGE; then the floors beside the log again and the listings
    assert again.ended <= 3, again.requests


def test_stages_of_a_query_are_looked_up_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that finds a query stored waits for little more than it does for one stage."""
    folders_are_far(monkeypatch)
    base = spark.range(0, 1000, 1, 4).selectExpr("id", "id % 17 AS k")
    sums = [F.sum("id").alias(f"s{n}") for n in range(9)]
    parts = [base.where(f"k <> {n}").groupBy("k").agg(one) for n, one in enumerate(sums)]
    df = reduce(lambda a, b: a.join(b, "k"), parts)
    for run in range(2):
        with DurableShuffle(spark, str(tmp_path), job="rounds") as shuffle:
            shuffle.checkpoint(base, name="warm")
            with counted_rounds(monkeypatch) as rounds:
                frame = shuffle.query(df)
            stages = [one for one in shuffle.report().stages if one.name == "query"]
            assert len(stages) >= 8
            assert any(one.map_tasks_run for one in stages) is (run == 0)
            assert len(frame.collect()) == 8
    # look, one STAGE after the other, the floors
    assert rounds.ended <= len(stages) + 5, "\n".join(map(str, rounds.requests))


def test_a_driver_opens_and_ends_in_few_rounds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a job with a long log. Its snapshot is kept behind the caller."""
    folders_are_far(monkeypatch)
    open_ = partial(DurableShuffle, spark, tmp_path, job="rounds", retention="until_released")
    snapshots: set[str] = set()
    for run in range(6):
        with open_() as shuffle:
            for n in range(2):
                shuffle.checkpoint(spark.range(n + 1), name=f"s{n}")
        with counted_rounds(monkeypatch) as rounds:
            shuffle = open_()
            shuffle._driver.log._later.wait()  # type: ignore[attr-defined]
            if shuffle._stored.deleting is not None:
                shuffle._stored.deleting.join()
        # the snapshots, the newest beside the log, the floors, CLAIM, and behind it the floors;
        # before there is a snapshot, the first slot alone
        [claim] = [n for n, verb, key in rounds.requests if (verb, key[:11]) == _CLAIM]
        told = "\n".join(map(str, rounds.requests))
        assert claim <= 4 + (run == 0), f"{run}\n{told}"
        snapshots |= {verb for _, verb, key in rounds.requests if "/snapshots/" in key}
        with counted_rounds(monkeypatch) as rounds:
            shuffle.close()
        assert rounds.ended <= 1, (run, rounds.requests)
    assert snapshots >= {"list", "read", "put_if_absent"}


@pytest.mark.parametrize("record", ["/log/0000000000", "rounds/log/"], ids=["DESCRIBE", "STAGE"])
def test_a_stage_is_entered_beside_the_preparations(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: str
) -> None:
    """Spark plans the map tasks while each of both records is on its way; none starts before."""
    order: list[str] = []
    prepared = threading.Event()
    encode, put, run = ClassicEngine.pieces, LocalStorage.put_if_absent, classic.results_of_pieces

    def pieces(*given: Any) -> Any:
        made = encode(*given)
        order.append("prepared")
        prepared.set()
        return made

    def late(self: LocalStorage, key: str, content: bytes) -> Any:
        late = key.startswith(record) or key.endswith(record)
        if late:
            assert prepared.wait(60), "nothing is prepared meanwhile"
        result = put(self, key, content)
        if late:
            order.append("entered")
        return result

    def run_job(*given: Any, **more: Any) -> Any:
        order.append("tasks")
        return run(*given, **more)

    with DurableShuffle(spark, str(tmp_path), job="rounds") as shuffle:
        shuffle.checkpoint(spark.range(3), name="workers").count()
        with monkeypatch.context() as patch:
            patch.setattr(ClassicEngine, "pieces", pieces)
            patch.setattr(LocalStorage, "put_if_absent", late)
            patch.setattr(classic, "results_of_pieces", run_job)
            shuffle.checkpoint(spark.range(5), name="tiny")
    assert order == ["prepared", "entered", "tasks"]


def test_a_driver_that_may_not_enter_a_stage_starts_no_task(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is the one that is raised, and nothing is written."""
    older = DurableShuffle(spark, str(tmp_path), job="rounds")
    older.checkpoint(spark.range(3), name="workers").count()
    claims._held.clear()  # a driver of its own, as in another process
    with DurableShuffle(spark, str(tmp_path), job="rounds"):
        run = Mock()
        monkeypatch.setattr(classic, "results_of_pieces", run)
        with pytest.raises(FencedError):
            older.checkpoint(spark.range(5), name="tiny")
        run.assert_not_called()


def test_a_stage_without_map_tasks_is_entered_before_it_is_sealed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty frame has no partition, so nothing else waits for the records."""
    order: list[str] = []
    sealing = threading.Event()
    put = LocalStorage.put_if_absent

    def late(self: LocalStorage, key: str, content: bytes) -> Any:
        name = "STAGE" if key.startswith("rounds/log/") else key[-1:]
        if name == "1":
            sealing.set()
        elif name == "0":
            assert not sealing.wait(1), "the SEAL is on its way before DESCRIBE"
        order.append(name)
        return put(self, key, content)

    empty = spark.range(5).where("false")
    with DurableShuffle(spark, str(tmp_path), job="rounds") as shuffle:
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "put_if_absent", late)
            assert shuffle.checkpoint(empty, name="empty").count() == 0
        assert shuffle.report().stages[0].map_tasks == 0
    assert order[:3] == ["0", "STAGE", "1"]
