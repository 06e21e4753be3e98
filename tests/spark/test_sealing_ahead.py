"""The next stage of a query is prepared while the one below is sealed; none of its tasks starts."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import ConflictError
from durable_shuffle.shuffle.storage.local import LocalStorage

pytestmark = pytest.mark.spark

_DESCRIBE, _SEAL = "/log/0000000000", "/log/0000000001"


def two_exchanges(spark: SparkSession) -> DataFrame:
    numbers = spark.range(0, 4000, 1, 4).groupBy((F.col("id") % 40).alias("k")).count()
    return numbers.groupBy("count").agg(F.count("*").alias("n"), F.max("k").alias("most"))


class Watched:
    """Puts of records of stages, and Spark jobs of map tasks, in their order."""

    def __init__(self, patch: pytest.MonkeyPatch, before: Callable[["Watched", str], None]) -> None:
        self.order: list[str] = []
        self.described: list[str] = []
        """Stages, in the order of their DESCRIBEs."""
        self.second = threading.Event()
        put, run = LocalStorage.put_if_absent, SparkContext.runJob

        def watched_put(storage: LocalStorage, key: str, content: bytes) -> Any:
            stage = key.rsplit("/log/", 1)[0]
            if not stage.startswith("tests/query-"):
                return put(storage, key, content)
            if key.endswith(_SEAL):
                before(self, stage)
            result = put(storage, key, content)
            if key.endswith(_DESCRIBE):
                self.described.append(stage)
            self.order += ["DESCRIBE"] * key.endswith(_DESCRIBE) + ["SEAL"] * key.endswith(_SEAL)
            if len(self.described) == 2:
                self.second.set()
            return result

        def watched_run(*given: Any, **more: Any) -> Any:
            self.order.append("tasks")
            return run(*given, **more)

        patch.setattr(LocalStorage, "put_if_absent", watched_put)
        patch.setattr(SparkContext, "runJob", watched_run)


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
