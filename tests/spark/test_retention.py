"""retention="when_consumed": a stage is deleted when its declared consumers have finished.

The tests write the consumers' records into their logs, and look at files to see what remains.
"""

import random
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from littered_job import StoredConsumer
from other_driver import forget_claims
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import InvalidInputError, NotFoundError
from durable_shuffle.shuffle.base.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, require_seal
from durable_shuffle.shuffle.release.retention import register_consumers
from durable_shuffle.shuffle.storage.local import LocalStorage

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

PARTITIONS = 2


def run(shuffle: DurableShuffle, session: SparkSession, root: str) -> StageHandle:
    """Store one stage with one declared consumer."""
    df = session.range(0, 20, 1, 2)
    stored = shuffle.repartition(df, PARTITIONS, "id")
    assert sorted(row["id"] for row in stored.collect()) == list(range(20))
    with pytest.raises(InvalidInputError, match="a stored stage"):
        shuffle.register_consumers(df, ["reader"])
    assert shuffle.register_consumers(stored, ["reader"]) == ("reader",)
    (info,) = shuffle.stages()
    path = StagePath("tests", info.name, info.fingerprint, info.incarnation)
    return open_stage(LocalStorage(root), path)


def finish(stage: StageHandle, subpartitions: list[int]) -> None:
    """Have the consumer read these subpartitions to their end."""
    random.shuffle(subpartitions)
    for k in subpartitions:
        consumer = StoredConsumer(stage.storage, stage, k, "reader", RandomIds())
        consumer.open()
        assert consumer.ack({0: 1}, finish=True)


def segments(root: str) -> int:
    """Return how many segments are below the root."""
    return len(list(Path(root).rglob("*.seg")))


@dataclass(frozen=True)
class Night(SystemClock):
    """The clock of a run in some night."""

    night: int

    def wall(self) -> float:
        return 1e9 + 86_400 * self.night


def nightly(night: int) -> type[DurableShuffle]:
    """The class, with the clock of that night."""

    class Nightly(DurableShuffle):
        def _clock_and_ids(self) -> tuple[Clock, IdSource]:
            return Night(night), RandomIds()

    return Nightly


def decision(session: SparkSession, root: str, night: int, **how: Any) -> str:
    """Run the job in one night; return how its stage came about."""
    with nightly(night)(session, root, job="tests", **how) as shuffle:
        shuffle.durable(session.range(20))
        return shuffle.report().stages[0].action


def test_nightly_job_reuses_yesterdays_stage(session: SparkSession, root: str) -> None:
    """An age counts from the last use, and what the last run used stays in any case."""
    keep = timedelta(days=1)
    runs = [decision(session, root, night, retention=keep) for night in (0, 1, 2, 4)]
    assert runs == ["computed", "reused", "reused", "reused"]


def test_storage_is_bounded_by_default(session: SparkSession, root: str) -> None:
    """A stage that no later run can find again, every night: at most two are stored."""
    stored = []
    for night in range(4):
        with nightly(night)(session, root, job="tests") as shuffle:
            assert shuffle.vacuum() == []
            assert shuffle.durable(session.range(0, 3, 1, 1).selectExpr("now() as t")).count() == 3
            stored.append(len(shuffle.stages()))
    assert stored == [1, 2, 2, 2]
    assert segments(root) == 2


def finish_and_fail(session: SparkSession, root: str, stage: StageHandle) -> None:
    """Leave the block with an error after the last consumer finished."""
    with DurableShuffle(session, root, job="tests", retention="when_consumed"):
        finish(stage, [0])
        raise ZeroDivisionError


@pytest.mark.requirement("R-F135-2")
def test_stage_goes_with_its_last_consumer(session: SparkSession, root: str) -> None:
    """Not while one subpartition is unread, nor if the block fails; then once, with the cause."""
    with DurableShuffle(session, root, job="tests", retention="when_consumed") as shuffle:
        stage = run(shuffle, session, root)
        finish(stage, [1])
        assert shuffle.release_consumed() == []
    assert segments(root) > 0
    with pytest.raises(ZeroDivisionError):
        finish_and_fail(session, root, stage)
    assert segments(root) > 0
    shuffle = DurableShuffle(session, root, job="tests", retention="when_consumed")
    assert segments(root) == 0
    assert shuffle.stages() == []
    with pytest.raises(NotFoundError, match="consumed: reader finished in every subpartition"):
        require_seal(stage)


def test_fenced_driver_leaves_the_block_without_an_error(session: SparkSession, root: str) -> None:
    """The newer driver decides about the stages that it would have released."""
    with DurableShuffle(session, root, job="tests", retention="when_consumed") as shuffle:
        finish(run(shuffle, session, root), [0, 1])
        forget_claims()
        DurableShuffle(session, root, job="tests")
    assert segments(root) > 0


def test_consume_holds_its_stage_back(session: SparkSession, root: str) -> None:
    """The consumer is registered before it reads its first record. A closed set must name it, an
    unfinished consumer keeps the stage, and the stage is deleted once it has finished."""

    def failing(batch: pa.RecordBatch) -> None:
        raise ZeroDivisionError("on purpose")

    shuffle = DurableShuffle(session, root, job="tests", retention="when_consumed")
    stored = shuffle.repartition(session.range(0, 20, 1, 2), PARTITIONS, "id")
    with pytest.raises(Exception, match="on purpose"):
        shuffle.consume(stored, consumer="loader", process=failing)
    (info,) = shuffle.stages()
    path = StagePath("tests", info.name, info.fingerprint, info.incarnation)
    stage = open_stage(LocalStorage(root), path)
    declare: dict[str, Any] = {"ids": RandomIds(), "generation": shuffle.generation}
    with pytest.raises(InvalidInputError, match="missing=loader"):
        register_consumers(stage, ["reader"], **declare)
    register_consumers(stage, ["reader", "loader"], **declare)
    finish(stage, [0, 1])
    assert shuffle.release_consumed() == []
    with pytest.raises(InvalidInputError, match="declared and closed"):
        shuffle.consume(stored, consumer="stranger", process=failing)
    shuffle.consume(stored, consumer="loader", process=lambda batch: None)
    assert len(shuffle.release_consumed()) == 1
    assert segments(root) == 0
