"""A stage in which somebody put frames of a few bytes that become hundreds of MiB, all sums right.

Compressed ones, and such with millions of values that have no bytes.

Written by our own writer with its limit out of the way: length, digest, CRCs, index are as they
should be.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from small_stage import (
    ManualClock,
    SeededIds,
    new_stage,
    seal,
    write,
)

from durable_shuffle.serialization import arrow_codec
from durable_shuffle.serialization.arrow_checks import BARE_BYTES, MAX_INFLATED_BYTES, bare_bytes
from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.read.sealed_reader import join_small, read_group, read_subpartition
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.stream.scan import StageScan, read_row_ranges
from durable_shuffle.shuffle.verify.stage import check_stage
from durable_shuffle.shuffle.write.log_producer import LogProducer

SCHEMA = pa.schema([("text", pa.string())])
BECOMES = 2 * MAX_INFLATED_BYTES
BARE_SCHEMA = pa.schema([("nothing", pa.list_(pa.null()))])
BARE = 50_000_000
REFUSED = {
    "compressed": (f"becomes? {BECOMES + 8} bytes", f"at most {MAX_INFLATED_BYTES} are expected"),
    "bare": (f"{BARE} values have no bytes", f"at most {MAX_INFLATED_BYTES // BARE_BYTES},"),
}
MADE = Settings(writer_memory_bytes=4 * BECOMES, frame_bytes=1024)


@pytest.fixture
def memory() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture(params=sorted(REFUSED))
def bomb(request: pytest.FixtureRequest) -> str:
    """How few bytes are made to become much."""
    return str(request.param)


@pytest.fixture(params=["batch", "log"])
def forged(
    request: pytest.FixtureRequest,
    bomb: str,
    memory: MemoryStorage,
    ids: SeededIds,
    monkeypatch: pytest.MonkeyPatch,
) -> StageHandle:
    """A good row, a frame of some kB that becomes BECOMES bytes or BARE values, a good row."""
    writing = request.param
    if bomb == "bare":
        lists = pa.ListArray.from_arrays(
            pa.array([0, 1, BARE + 1, BARE + 2], pa.int32()), pa.nulls(BARE + 2)
        )
        batch = pa.RecordBatch.from_arrays([lists], schema=BARE_SCHEMA)
    else:
        batch = pa.record_batch([["a", "\0" * BECOMES, "b"]], schema=SCHEMA)
    stage = new_stage(
        memory, ids, batch.schema, partitions=1, producers=1, writing=writing, compression="zstd"
    )
    rows = [(batch, np.zeros(3, np.uint16))]
    with monkeypatch.context() as patch:
        patch.setattr(arrow_codec, "MAX_INFLATED_BYTES", 1 << 40)
        if writing == "log":
            with LogProducer.open(
                stage, 0, record_id=ids.new_id(), generation=1, settings=MADE
            ) as producer:
                producer.append(rows, b"")
                producer.end("FINITE")
        else:
            write(stage, 0, rows, ids.new_id(), settings=MADE)
            seal(stage, 1, ids.new_id())
    (segment,) = memory.list(stage.path.segments_prefix)
    assert segment.size_bytes < BECOMES // 1000
    return stage


def readers(stage: StageHandle, ids: SeededIds) -> Iterator[Iterator[pa.RecordBatch]]:
    """Every way to get at the rows."""
    settings = Settings(view_prefetch=False)
    if stage.describe.writing == "log":
        scan = StageScan(stage)
        yield read_row_ranges(stage, scan.ranges(scan.earliest(), scan.latest()), settings)
    else:
        sealed = require_seal(stage)
        yield read_subpartition(stage, sealed, 0, settings)
        yield join_small(read_subpartition(stage, sealed, 0, settings), 10)
        yield read_group(stage, sealed, 0, 1, settings)
    with open_view(
        stage, 0, consumer="c", settings=settings, ids=ids, clock=ManualClock(0.0, [])
    ) as view:
        yield iter(view)


@pytest.mark.requirement("R-F135-30")
def test_every_reader_refuses_them(forged: StageHandle, bomb: str, ids: SeededIds) -> None:
    """The error names segment and offset; no memory is taken for the frame."""
    said, limit = REFUSED[bomb]
    (segment,) = forged.storage.list(forged.path.segments_prefix)
    place = rf"frame at byte [1-9]\d*: .*{said}.*segment='{segment.key}'"
    pool = pa.default_memory_pool()
    for reader in readers(forged, ids):
        before = pool.max_memory()
        with pytest.raises(CorruptDataError, match=place):
            list(reader)
        assert pool.max_memory() == before
    findings = check_stage(forged.storage, forged.path, Settings(), released=False).findings
    assert [finding.key for finding in findings] == [segment.key]
    assert findings[0].start
    assert limit in findings[0].found


def test_the_same_row_is_legal_as_it_is(memory: MemoryStorage, ids: SeededIds) -> None:
    """A row over the limit is written without compression, in as many frames as it takes."""
    stage = new_stage(memory, ids, SCHEMA, partitions=1, compression="zstd")
    text = "\0" * (MAX_INFLATED_BYTES + 1)
    batch = pa.record_batch([["a", text, "b"]], schema=SCHEMA)
    settings = dataclasses.replace(MADE, max_frame_bytes=MAX_INFLATED_BYTES // 4)
    write(stage, 0, [(batch, np.zeros(3, np.uint16))], ids.new_id(), settings=settings)
    sealed = seal(stage, 1, ids.new_id())
    found = pa.Table.from_batches(read_subpartition(stage, sealed, 0, Settings()))
    assert found.equals(pa.Table.from_batches([batch]))
    assert not check_stage(memory, stage.path, Settings(), released=False).findings


@pytest.mark.parametrize("columns", [0, 1])
def test_many_rows_without_bytes_are_legal(
    memory: MemoryStorage, ids: SeededIds, columns: int
) -> None:
    """More values in one flush than a frame may hold: the writer cuts, every row comes back."""
    each, rows = 1 << 17, 66 * (1 << 17) if columns == 0 else 66
    lists = pa.ListArray.from_arrays(
        pa.array(range(0, 67 * each, each), pa.int32()), pa.nulls(66 * each)
    )
    batch = pa.RecordBatch.from_arrays([lists], schema=BARE_SCHEMA)
    if not columns:
        batch = pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["c"]).select([])
    assert bare_bytes(batch) > MAX_INFLATED_BYTES
    stage = new_stage(memory, ids, batch.schema, partitions=1, producers=1)
    settings = Settings(frame_bytes=1 << 30)
    write(stage, 0, [(batch, np.zeros(rows, np.uint16))], ids.new_id(), settings=settings)
    sealed = seal(stage, 1, ids.new_id())
    found = list(read_subpartition(stage, sealed, 0, Settings()))
    assert sum(part.num_rows for part in found) == rows
    assert sum(map(bare_bytes, found)) == bare_bytes(batch)
    assert max(map(bare_bytes, found)) <= MAX_INFLATED_BYTES // 2
    assert not check_stage(memory, stage.path, Settings(), released=False).findings


def test_a_row_with_too_many_of_them_is_refused_at_the_write(
    memory: MemoryStorage, ids: SeededIds
) -> None:
    """Nobody accepts a row that nobody reads; nothing is committed."""
    stage = new_stage(memory, ids, BARE_SCHEMA, partitions=1, producers=1)
    lists = pa.ListArray.from_arrays(pa.array([0, BARE], pa.int32()), pa.nulls(BARE))
    batch = pa.RecordBatch.from_arrays([lists], schema=BARE_SCHEMA)
    with pytest.raises(InvalidInputError, match=f"{BARE} values have no bytes.*rows=1"):
        write(stage, 0, [(batch, np.zeros(1, np.uint16))], ids.new_id())
    assert not list(memory.list(stage.path.segments_prefix))
