"""The stream and batch readers as Spark calls them, without Spark: offsets, limits, retention."""

import json
import pickle
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, In
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)
from pyspark.sql.types import LongType, StringType, StructType
from run_engine import ROWS, SCHEMA, EngineRun
from small_stage import ManualClock, SeededIds, new_stage

from durable_shuffle.jobs.streaming.options import read_options
from durable_shuffle.jobs.streaming.reading import BatchReader
from durable_shuffle.jobs.streaming.source import DurableShuffleSource
from durable_shuffle.jobs.streaming.stream_reader import StreamReader
from durable_shuffle.jobs.streaming.writing import in_schema
from durable_shuffle.serialization.arrow_schemas import schema_to_bytes
from durable_shuffle.serialization.errors import (
    FencedError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
)
from durable_shuffle.shuffle.base.clock import Clock, RandomIds
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.log.job_log import enter_stage
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.retention import consumer_tasks
from durable_shuffle.shuffle.rows.partitioner import hash_partition_ids
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.stream import consumer as stream_consumer
from durable_shuffle.shuffle.stream.scan import StageScan
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule

SPARK_SCHEMA = StructType().add("n", LongType())
PARTITIONS = 3


class Stored:
    """A stage in a folder, with batches written by one run."""

    def __init__(self, folder: Path, seed: int = 5) -> None:
        self.url = str(folder)
        storage, self.draw = open_storage(self.url), random.Random(seed)
        ids = RandomIds()
        self.stage: StageHandle = new_stage(
            storage, SeededIds(self.draw), SCHEMA, partitions=PARTITIONS, writing="log"
        )
        enter_stage(
            storage,
            self.stage.path,
            record_id=ids.new_id(),
            claim_id=ids.new_id(),
            replaces=True,
        )
        self.run, self.batches = EngineRun(self.stage, self.draw), 0

    def write(self, batches: int) -> None:
        for _ in range(batches):
            assert self.run.commit(self.batches, self.run.tasks(self.batches))
            self.batches += 1

    def reader(self, clock: Clock | None = None, **options: Any) -> StreamReader:
        place = {"url": self.url, "job": "job", "stage": "stage"}
        found = read_options({**place, **{k: str(v) for k, v in options.items()}}, stream=True)
        return StreamReader(found, SPARK_SCHEMA, clock or ManualClock(0.0, []))


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path / "root")


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """Read as tasks do: partition and reader arrive pickled."""
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    task = pickle.loads(pickle.dumps(reader))
    return [n for p in parts for b in task.read(p) for n in b.column("n").to_pylist()]


def test_limits_and_starting_points(stored: Stored) -> None:
    """A limit is never passed; earliest, latest and an offset are where they say."""
    stored.write(3)
    reader = stored.reader(maxRecordsPerTrigger=10)
    assert reader.getDefaultReadLimit() == ReadMaxRows(10)
    start, found = reader.initialOffset(), []
    while True:
        end = json.loads(json.dumps(reader.latestOffset(start, ReadMaxRows(10))))
        if end == start:
            break
        mine = rows(reader, start, end)
        assert 0 < len(mine) <= 10
        found += mine
        middle, start = start, end
    assert Counter(found) == Counter(range(3 * ROWS))
    assert reader.partitions(start, start) == []
    assert reader.reportLatestOffset() == start

    latest = stored.reader(startingOffsets="latest").initialOffset()
    assert latest == start
    at = stored.reader(startingOffsets=json.dumps({"producers": middle["producers"]}))
    begin = at.initialOffset()
    assert rows(at, begin, latest) == rows(reader, middle, start)
    small = stored.reader(maxBytesPerTrigger=1)
    assert small.getDefaultReadLimit() == ReadMaxBytes(1)
    first = small.initialOffset()
    assert len(rows(small, first, small.latestOffset(first, ReadMaxBytes(1)))) == 1
    assert small.latestOffset(first, ReadAllAvailable()) == latest


class Writing(ManualClock):
    """A clock during whose third pause a batch is committed."""

    stored: Stored

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        if len(self.pauses) == 3:
            self.stored.write(1)


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(5 * ROWS)])
@pytest.mark.parametrize("before", [0, 1])
def test_a_trigger_takes_rows_that_come_while_it_waits(
    stored: Stored, limit: ReadLimit, before: int
) -> None:
    """It goes on with them at once, also if others were there; without any when time is up."""
    clock = Writing(0.0, [])
    clock.stored = stored
    stored.write(before)
    reader = stored.reader(clock, maxWaitMillis=400)
    start = reader.initialOffset()
    end = reader.latestOffset(start, limit)
    assert Counter(rows(reader, start, end)) == Counter(range((before + 1) * ROWS))
    assert clock.pauses == pytest.approx([0.01, 0.02, 0.04])
    assert reader.latestOffset(end, limit) == end
    assert sum(clock.pauses[3:]) == pytest.approx(0.4)


def test_a_trigger_does_not_wait_for_nothing(stored: Stored) -> None:
    """Not beyond a limit that is reached, not when told so, not for an available-now run."""
    stored.write(2)
    clock = ManualClock(0.0, [])
    reader = stored.reader(clock)
    start = reader.initialOffset()
    reader.latestOffset(start, ReadMaxRows(ROWS))
    hasty = stored.reader(clock, maxWaitMillis=0)
    hasty.latestOffset(start, ReadAllAvailable())
    reader.prepareForTriggerAvailableNow()
    reader.latestOffset(start, ReadMaxRows(5 * ROWS))
    assert clock.pauses == []


def test_available_now_ends_at_what_was_there(stored: Stored) -> None:
    """What comes after the beginning of the run waits for the next."""
    stored.write(2)
    reader = stored.reader(maxRecordsPerTrigger=9)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    stored.write(2)
    found = []
    while (end := reader.latestOffset(start, ReadMaxRows(9))) != start:
        found += rows(reader, start, end)
        start = end
    assert Counter(found) == Counter(range(2 * ROWS))


def test_what_all_declared_readers_passed_is_given_back(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Storage goes down; a reader that is not through keeps its rows; who is late is told."""
    monkeypatch.setattr(stream_consumer, "RELEASE_EVERY_SLOTS", 3)
    stored.write(6)
    one = stored.reader(consumer="one", consumers="one,two")
    two = stored.reader(consumer="two", consumers="one,two")
    start = one.initialOffset()
    end = one.latestOffset(start, ReadAllAvailable())
    one.commit(end)
    segments = len(list(Path(stored.url).glob("*/*/segments/*/*.seg")))
    assert Counter(rows(two, start, end)) == Counter(range(6 * ROWS))

    half = two.latestOffset(start, ReadMaxRows(3 * ROWS))
    two.commit(half)
    left = len(list(Path(stored.url).glob("*/*/segments/*/*.seg")))
    assert left < segments
    assert Counter(rows(two, half, end)) + Counter(rows(stored.reader(), half, end)) == Counter(
        list(range(3 * ROWS, 6 * ROWS)) * 2
    )
    earliest = stored.reader().initialOffset()
    assert earliest["producers"][0]["next"] == half["producers"][0]["next"]
    with pytest.raises(NotFoundError, match="earliest available is") as late:
        stored.reader().latestOffset(start, ReadAllAvailable())
    assert str(earliest["producers"][0]["next"]) in str(late.value)
    with pytest.raises(InvalidInputError, match="declared and closed"):
        stored.reader(consumer="three").latestOffset(half, ReadAllAvailable())


def test_many_acknowledgements_of_one_reader(stored: Stored) -> None:
    """Full records come in between; a reader that starts anew fences the one before."""
    stored.write(1)
    reader = stored.reader(consumer="one")
    offset = reader.initialOffset()
    for _ in range(ROWS):
        offset = reader.latestOffset(offset, ReadMaxRows(1))
        reader.commit(offset)
    for _ in range(70):
        stored.write(1)
        offset = reader.latestOffset(offset, ReadAllAvailable())
        reader.commit(offset)
    second = stored.reader(consumer="one")
    stored.write(1)
    second.commit(second.latestOffset(offset, ReadAllAvailable()))
    stored.write(1)
    with pytest.raises(FencedError):
        reader.commit(reader.latestOffset(offset, ReadAllAvailable()))


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_acknowledgement_without_an_answer_comes_before_the_next(
    stored: Stored, when: Literal["before", "after"]
) -> None:
    """Spark goes on with a later offset: whether the record landed or not, that one counts."""
    scan = StageScan(stored.stage)
    stored.write(1)
    faulty = FaultyStorage(
        stored.stage.storage, [Rule("put_if_absent", "job/consumers/", when, 3, "lost_reply")]
    )
    stage = replace(stored.stage, storage=faulty)
    reader = stream_consumer.StreamConsumer(stage, "one", declared=(), ids=RandomIds())
    reader.acknowledge(scan.latest())
    stored.write(1)
    with pytest.raises(OutcomeUnknownError):
        reader.acknowledge(scan.latest())
    stored.write(1)
    reader.acknowledge(scan.latest())
    assert faulty.fired == 1
    (path,) = consumer_tasks(stage.storage, "job", "one")
    acked = read_resume_set(SlotLog(stage.storage, path.log_prefix)).inputs.values()
    assert sum(at.next_ordinal for state in acked for at in state.acked.values()) == 3 * ROWS


def test_offsets_of_another_stage(stored: Stored, tmp_path: Path) -> None:
    """A checkpoint of another stage is refused with both named; so are offsets that are none."""
    other = Stored(tmp_path / "other", seed=6)
    other.write(1)
    theirs = other.reader().initialOffset()
    with pytest.raises(IncompatibleError, match="the checkpoint reads") as refused:
        stored.reader().latestOffset(theirs, ReadAllAvailable())
    assert other.stage.path.folder in str(refused.value)
    assert stored.stage.path.folder in str(refused.value)
    for text, words in (
        ("soon", "must be earliest, latest or an offset"),
        ('{"producers": [{"next": [1]}]}', "names [1] subpartitions per producer"),
        ('{"producers": [{"next": [-1, 0, 0]}]}', "numbers from 0 on"),
        ('{"producers": [{"next": [5, 0, 0]}]}', "lies behind the end"),
    ):
        with pytest.raises(InvalidInputError) as wrong:
            stored.reader(startingOffsets=text).initialOffset()
        assert words in str(wrong.value)


def test_a_released_stage_is_named(tmp_path: Path) -> None:
    """No such stage: those that there are."""
    stored = Stored(tmp_path / "root")
    options = {"url": stored.url, "job": "job", "stage": "nothing"}
    with pytest.raises(NotFoundError, match="stored: stage"):
        DurableShuffleSource(options).schema()


@pytest.mark.parametrize(
    "schema",
    [
        StructType().add("n", StringType()),
        StructType().add("nn", LongType()),
        StructType().add("n", LongType()).add("later", LongType(), nullable=False),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(stored: Stored, schema: StructType) -> None:
    """Another type is no damage, and a column that is not stored is no null for all rows."""
    stored.write(1)
    place = {"url": stored.url, "job": "job", "stage": "stage"}
    batch = BatchReader(read_options(place, stream=False), schema)
    with pytest.raises(IncompatibleError, match=r"asked for, see column .*stored \(n int64"):
        batch.partitions()
    stream = StreamReader(read_options(place, stream=True), schema, ManualClock(0.0, []))
    with pytest.raises(IncompatibleError, match=r"asked for, see column .*stored \(n int64"):
        stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    wide = StructType().add("n", LongType()).add("later", LongType())
    assert BatchReader(read_options(place, stream=False), wide).partitions()


def test_filters_on_the_key_skip_subpartitions(stored: Stored) -> None:
    """Only those that can hold the values are read; a filter on anything else skips none."""
    stored.write(2)
    place = {"url": stored.url, "job": "job", "stage": "stage"}

    def kept(*filters: Any) -> set[int]:
        reader = BatchReader(read_options(place, stream=False), SPARK_SCHEMA)
        assert list(reader.pushFilters(list(filters))) == list(filters)
        return {span.extent.subpartition for task in reader.partitions() for span in task.pieces}

    ids = hash_partition_ids([pa.array([4, 9], pa.int64())], PARTITIONS)
    assert kept() == set(range(PARTITIONS))
    assert kept(EqualTo(("n",), 4)) == {int(ids[0])}
    assert kept(In(("n",), (4, 9))) == set(np.asarray(ids).tolist())
    assert kept(EqualTo(("n",), "text")) == set(range(PARTITIONS))
    assert kept(EqualTo(("m",), 4)) == set(range(PARTITIONS))


def test_storage_stays_bounded_while_a_declared_reader_keeps_up(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each release begins where the one before ended, also across a new start of the reader."""
    monkeypatch.setattr(stream_consumer, "RELEASE_EVERY_SLOTS", 4)
    reader = stored.reader(consumer="one", consumers="one")
    offset, left = reader.initialOffset(), []
    for turn in range(40):
        stored.write(1)
        offset = reader.latestOffset(offset, ReadAllAvailable())
        reader.commit(offset)
        left.append(len(list(Path(stored.url).glob("*/*/segments/*/*.seg"))))
        if turn == 20:
            reader = stored.reader(consumer="one", consumers="one")
    assert max(left) <= 2 * 6, left


def test_a_stage_in_a_later_schema_names_the_added_columns(tmp_path: Path) -> None:
    """DESCRIBE names only the columns that the stage began with."""
    stage = Stored(tmp_path).stage
    wide = SCHEMA.append(pa.field("later", pa.int64()))
    found = in_schema(stage, schema_to_bytes(wide))
    assert found.schema == wide
    assert found.describe.columns == (*SCHEMA.names, "later")
