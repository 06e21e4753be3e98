"""The next stage of a query is prepared while the one below is sealed; none of its tasks starts."""

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from round_trips import folders_are_far
from sealing import Watched, two_exchanges

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import ConflictError
from durable_shuffle.shuffle.storage.contract import Bytes
from durable_shuffle.shuffle.storage.local import LocalStorage

pytestmark = pytest.mark.spark


def test_the_next_stage_is_entered_while_the_one_below_is_sealed(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks start behind the SEAL."""

    def before(watched: Watched, stage: str) -> None:
        if stage == watched.described[0]:
            assert watched.second.wait(60), "the next stage waits for the SEAL"

    df = two_exchanges(session)
    with DurableShuffle(session, root, job="tests") as shuffle:
        shuffle.checkpoint(session.range(3), name="workers").count()
        with monkeypatch.context() as patch:
            watched = Watched(patch, before)
            stored = shuffle.query(df)
        assert sorted(stored.collect()) == sorted(df.collect())
        tasks = [one.map_tasks_run for one in shuffle.report().stages if one.name == "query"]
    assert len(tasks) == 2
    assert all(tasks)
    assert watched.order == ["DESCRIBE", "tasks", "DESCRIBE", "SEAL", "tasks", "SEAL"]


def test_a_seal_that_fails_ends_the_query(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task of the stage above has started, nothing of it is stored, and a later run has all."""

    def before(watched: Watched, stage: str) -> None:
        if stage == watched.described[0]:
            assert watched.second.wait(60)
            raise ConflictError("no SEAL today")

    df = two_exchanges(session)
    with DurableShuffle(session, root, job="tests") as shuffle:
        shuffle.checkpoint(session.range(3), name="workers").count()
        with monkeypatch.context() as patch:
            watched = Watched(patch, before)
            with pytest.raises(ConflictError, match="no SEAL today"):
                shuffle.query(df)
    assert watched.order == ["DESCRIBE", "tasks", "DESCRIBE"]
    assert not list(Path(root, watched.described[1]).glob("[ps]*"))  # producers, segments
    with DurableShuffle(session, root, job="tests") as shuffle:
        assert sorted(shuffle.query(df).collect()) == sorted(df.collect())
        assert shuffle.report().stages[0].map_tasks_run == 0


@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("used", ["broadcast", "subquery"])
def test_planning_that_reads_a_stage_has_its_index(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch, used: str, far: bool
) -> None:
    """Broadcasts and subqueries of the next stage run while it is planned.

    In a folder they wait for the index; where requests take long they are given its bytes.
    """
    if far:
        folders_are_far(monkeypatch)
    held: list[str] = []
    put = LocalStorage.put

    def late(storage: LocalStorage, key: str, parts: Sequence[Bytes]) -> None:
        if "/index/" in key and not held:
            held.append(key)
            assert not threading.Event().wait(3)
        put(storage, key, parts)

    sums = session.range(0, 400, 1, 4).groupBy((F.col("id") % 7).alias("k")).sum("id")
    numbers = session.range(0, 70, 1, 2).withColumn("k", F.col("id") % 7)
    if used == "broadcast":
        df = numbers.join(F.broadcast(sums), "k").groupBy("sum(id)").count()
    else:
        sums.createOrReplaceTempView("sums_of_test")
        few = numbers.where("id < (SELECT count(*) FROM sums_of_test)")
        df = few.groupBy("k").count()
    expected = sorted(df.collect())
    with DurableShuffle(session, root, job="tests") as shuffle:
        shuffle.checkpoint(session.range(3), name="workers").count()
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "put", late)
            assert sorted(shuffle.query(df).collect()) == expected
    assert held
