"""Rows over the limit of a frame, and rows of very different sizes: every way to write and read."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from small_stage import (
    ManualClock,
    SeededIds,
    new_stage,
    read_rows,
    seal,
    write,
)

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import read_output, write_output
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_pairs
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.repair.stage import repair_stage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.stream.scan import StageScan, read_row_ranges
from durable_shuffle.shuffle.verify.stage import check_stage
from durable_shuffle.shuffle.write.log_producer import LogProducer
from durable_shuffle.shuffle.write.producer import run_pair_producer
from durable_shuffle.shuffle.write.segments import frame_bounds

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
MIB = 1 << 20
SMALL_FRAMES = Settings(
    frame_bytes=64 * 1024,
    max_frame_bytes=MIB,
    compression="none",
    view_memory_bytes=600_000,
    view_buffer_bytes=300_000,
    view_prefetch=False,
)
SIZES = [10, 20, 3 * MIB, 0, MIB + 1, 30, 2 * MIB - 200, 5, 5]
Row = tuple[int, str]


def row(n: int, size: int) -> Row:
    """A row whose text tells it from all others, at every place."""
    return n, "".join(f"{n}:{at};" for at in range(0, size, 8)).ljust(size, "x")[:size]


def rows_of(sizes: list[int]) -> list[Row]:
    return [row(n, size) for n, size in enumerate(sizes)]


def batch_of(rows: list[Row], k: int = 0) -> tuple[pa.RecordBatch, np.ndarray]:
    columns = [[n for n, _ in rows], [text for _, text in rows]]
    return pa.record_batch(columns, schema=SCHEMA), np.full(len(rows), k, np.uint16)


@pytest.fixture
def stage(memory: MemoryStorage, ids: SeededIds) -> StageHandle:
    """A stage of two producers with the same long rows in partition 0, sealed."""
    made = new_stage(memory, ids, SCHEMA, partitions=2, producers=2, compression="none")
    for p in range(2):
        write(made, p, [batch_of(WANTED)], ids.new_id(), producers=2, settings=SMALL_FRAMES)
    seal(made, 2, ids.new_id())
    return made


WANTED = rows_of(SIZES)


def sealed_rows(stage: StageHandle) -> list[Row]:
    found = read_rows(stage, require_seal(stage), 0, SMALL_FRAMES)
    return [(one["n"], one["text"]) for one in found]


def opened(stage: StageHandle, ids: SeededIds, consumer: str = "c") -> View:
    clock = ManualClock(0.0, [])
    return open_view(stage, 0, consumer=consumer, settings=SMALL_FRAMES, ids=ids, clock=clock)


@pytest.mark.requirement("R-F135-30")
def test_long_rows_are_stored_and_read(stage: StageHandle, ids: SeededIds) -> None:
    """By a reader without a cursor, a view by batches, and a view by raw buffers; verify agrees."""
    assert sealed_rows(stage) == WANTED * 2
    with opened(stage, ids) as view:
        found = [(one["n"], one["text"]) for batch in view for one in batch.to_pylist()]
    assert found == WANTED * 2
    with opened(stage, ids, "raw") as view:
        stored = b"".join(bytes(buffer.data) for buffer in view.buffers())
        assert view.position.records == 2 * len(WANTED)
    assert len(stored) > 2 * sum(SIZES)
    assert not check_stage(stage.storage, stage.path, SMALL_FRAMES, released=False).findings


@pytest.mark.parametrize("count", range(2 * len(SIZES) + 1))
def test_a_view_goes_on_before_and_behind_a_long_row(
    stage: StageHandle, ids: SeededIds, other_process: Callable[[], None], count: int
) -> None:
    """Acknowledged at every row: the next view begins with the one behind it."""
    view, first = opened(stage, ids), []
    for one in view.records() if count else ():
        first.append(one["n"])
        if len(first) == count:
            break
    view.ack()
    other_process()
    with opened(stage, ids) as view:
        rest = [one["n"] for one in view.records()]
    assert first + rest == [n for n, _ in WANTED] * 2


def test_a_flipped_bit_in_any_part_is_found(stage: StageHandle, ids: SeededIds) -> None:
    """By readers and by verify, which go on behind it; repair puts it right from a compaction."""
    storage = stage.storage
    assert isinstance(storage, MemoryStorage)
    done = compact_stage(stage, ids=ids, generation=1, settings=SMALL_FRAMES, small_bytes=64 * MIB)
    assert done.won
    assert sealed_rows(stage) == WANTED * 2
    key = sorted(info.key for info in storage.list(stage.path.segments_prefix))[0]
    whole = storage._objects[key]
    for at in (MIB // 2, MIB + 500, 2 * MIB + 900, 4 * MIB, len(whole) - 30):
        data = bytearray(whole)
        data[at] ^= 1
        storage._objects[key] = bytes(data)
        findings = check_stage(storage, stage.path, SMALL_FRAMES, released=False).findings
        assert any(finding.key == key for finding in findings), at
    done = repair_stage(storage, stage.path, SMALL_FRAMES, ids=ids, generation=1)
    assert done.outcome == "repaired"
    assert sealed_rows(stage) == WANTED * 2
    key = next(
        info.key
        for info in storage.list(stage.path.segments_prefix)
        if require_seal(stage).attempts[16:].hex() in info.key
    )
    data = bytearray(storage._objects[key])
    data[2 * MIB] ^= 1
    storage._objects[key] = bytes(data)
    with pytest.raises(CorruptDataError, match="body CRC"):
        sealed_rows(stage)


def test_long_rows_of_log_producers(memory: MemoryStorage, ids: SeededIds) -> None:
    """Appended, followed by a view, and read by ranges as streams do."""
    stage = new_stage(
        memory, ids, SCHEMA, partitions=1, producers=1, writing="log", compression="none"
    )
    with LogProducer.open(
        stage, 0, record_id=ids.new_id(), generation=1, settings=SMALL_FRAMES
    ) as producer:
        for start in range(0, len(WANTED), 4):
            producer.append([batch_of(WANTED[start : start + 4])], b"")
        producer.end("FINITE")
    with opened(stage, ids) as view:
        found = [(one["n"], one["text"]) for one in view.records()]
    assert found == WANTED
    scan = StageScan(stage)
    ranges = scan.ranges(scan.earliest(), scan.latest())
    batches = read_row_ranges(stage, ranges, SMALL_FRAMES)
    assert [(one["n"], one["text"]) for b in batches for one in b.to_pylist()] == WANTED
    assert not check_stage(memory, stage.path, SMALL_FRAMES, released=False).findings


def test_long_objects(memory: MemoryStorage, ids: SeededIds) -> None:
    """Pairs of any size, many large ones in one partition, read back in order."""
    made = new_stage(memory, ids, SCHEMA, partitions=1, producers=1, compression="none")
    stage = dataclasses.replace(made, describe=dataclasses.replace(made.describe, codec="pairs"))
    pairs = [(n, text) for n, text in WANTED] + [(n, "y" * MIB) for n in range(40)]
    run_pair_producer(
        stage,
        0,
        pairs,
        lambda keys: np.zeros(len(keys), np.uint16),
        attempt=ids.new_id(),
        producers=1,
        settings=SMALL_FRAMES,
    )
    sealed = seal(stage, 1, ids.new_id())
    assert list(read_pairs(stage, sealed, 0, SMALL_FRAMES)) == pairs


def test_long_rows_in_an_output(stage: StageHandle, ids: SeededIds) -> None:
    """A consumer may publish what it may read."""
    with opened(stage, ids) as view:
        output = write_output(view.task, SCHEMA, [batch_of(WANTED)[0]])
        view.ack(outputs=[output])
        (published,) = view.outputs
        batches = read_output(stage.storage, published, SCHEMA)
        assert [(one["n"], one["text"]) for b in batches for one in b.to_pylist()] == WANTED


def sizes_of_frames(batch: pa.RecordBatch, wanted: int) -> list[tuple[int, int]]:
    """(rows, bytes) of each frame; they cover all rows in order."""
    bounds = list(frame_bounds(batch, 0, batch.num_rows, wanted))
    ends = [start + rows for start, rows in bounds]
    assert [start for start, _ in bounds] == [0, *ends[:-1]]
    assert ends[-1] == batch.num_rows
    return [(rows, batch.slice(start, rows).nbytes) for start, rows in bounds]


@pytest.mark.parametrize("first", ["large", "small"])
def test_frames_follow_the_size_of_the_rows_at_hand(first: str) -> None:
    """280 large rows and 9,720 empty ones in either order: no frame has more than twice the bytes
    that are wanted, and the empty rows take few frames."""
    texts = ["x" * 4096] * 280 + [""] * 9720
    batch = pa.record_batch([texts if first == "large" else texts[::-1]], names=["text"])
    frames = sizes_of_frames(batch, 32_768)
    assert max(size for _, size in frames) <= 2 * 32_768
    assert len(frames) < 100
    even = pa.record_batch([["x" * 100] * 10_000], names=["text"])
    assert len({rows for rows, _ in sizes_of_frames(even, 32_768)[:-1]}) == 1


def test_one_row_is_one_frame_whatever_its_size() -> None:
    """Also between others, and all rows come in order."""
    batch = batch_of(rows_of([5, 9000, 5, 5, 9000, 9000]))[0]
    assert [rows for rows, _ in sizes_of_frames(batch, 1024)] == [1, 1, 2, 1, 1]


@pytest.mark.soak
def test_rows_over_256_mib(memory: MemoryStorage, ids: SeededIds) -> None:
    """With the settings as they are: one row of 257 MiB, and 280 of 1 MiB before 9,720 empty ones,
    in one batch each."""
    schema = pa.schema([("doc", pa.binary())])
    inputs = [
        [b"begin" + b"x" * (257 * MIB) + b"end", b"small"],
        [b"x" * MIB] * 280 + [b""] * 9720,
    ]
    wanted = [*inputs[0], *inputs[1]]
    stage = new_stage(memory, ids, schema, partitions=1, producers=2, compression="none")
    for p, docs in enumerate(inputs):
        batch = pa.record_batch([pa.array(docs, pa.binary())], schema=schema)
        to = np.zeros(len(docs), np.uint16)
        write(stage, p, [(batch, to)], ids.new_id(), producers=2, settings=Settings())
    sealed = seal(stage, 2, ids.new_id())
    assert [one["doc"] for one in read_rows(stage, sealed, 0, Settings())] == wanted
    with open_view(stage, 0, consumer="c", settings=Settings(), ids=ids) as view:
        assert [one["doc"] for b in view for one in b.to_pylist()] == wanted
    assert not check_stage(memory, stage.path, Settings(), released=False).findings
