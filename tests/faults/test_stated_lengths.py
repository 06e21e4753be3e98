"""Lengths that a forged record or index states over a sparse file: refused, in bounded memory."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from memory_bound import bounded
from small_stage import (
    ManualClock,
    SeededIds,
    new_stage,
    seal,
    write,
)
from whole_index import index_objects

from durable_shuffle.serialization.errors import CorruptDataError, InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import read_output
from durable_shuffle.shuffle.log import records
from durable_shuffle.shuffle.log.consumer_records import OutputRef, StateRef
from durable_shuffle.shuffle.log.extent_table import EXTENT, pack_block
from durable_shuffle.shuffle.log.producer_log import commit_attempt
from durable_shuffle.shuffle.log.records import STAGE_RECORDS, Commit, SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle, require_seal, stage_log
from durable_shuffle.shuffle.read.extents import Extent
from durable_shuffle.shuffle.read.sealed_reader import read_group, read_pairs, read_subpartition
from durable_shuffle.shuffle.repair import compaction
from durable_shuffle.shuffle.repair.stage import repair_stage
from durable_shuffle.shuffle.seal import index
from durable_shuffle.shuffle.seal.index import INDEX_ENTRY, parse_entry
from durable_shuffle.shuffle.storage.contract import MAX_WHOLE_BYTES
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.stream.scan import RowRange, read_row_ranges
from durable_shuffle.shuffle.verify.stage import check_stage

SCHEMA = pa.schema([("text", pa.string())])
LENGTH = 8 << 30
"""Of what is read until its first frame fails."""
HASHED = 700 << 20
"""Of what is read to its end, because a record states its SHA-256."""
MOST = 256 << 20
"""Memory that a reader may take. LENGTH and HASHED are far over it."""

Read = Callable[[StageHandle, SeededIds], object]


def sparse(storage: LocalStorage, key: str, length: int) -> None:
    """Make the object `length` bytes long; what is new takes no space."""
    path = Path(storage.description.removeprefix("file:"), key)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, length)


def forged_stage(storage: LocalStorage, ids: SeededIds, length: int) -> StageHandle:
    """Seal one producer whose COMMIT and index state one extent of one row in `length` bytes."""
    stage = new_stage(storage, ids, SCHEMA, partitions=1, producers=1)
    attempt = ids.new_id()
    sparse(storage, stage.path.segment_key(0, attempt, 0), length)
    extent = pack_block(np.array([(0, 0, 0, length, 0, 1)], dtype=EXTENT), "subpartition")
    segments = (SegmentInfo(0, length, bytes(32)),)
    commit_attempt(stage.producer_log(0), Commit(attempt, 0, 1, 1, 8, segments, extent))
    seal(stage, 1, ids.new_id())
    return stage


def _piece(stage: StageHandle) -> Iterator[pa.RecordBatch]:
    (segment,) = stage.storage.list(stage.path.segments_prefix)
    extent = Extent(0, 0, segment.key, 0, 0, 0, segment.size_bytes, 0, 1)
    return read_row_ranges(stage, [RowRange(extent, 0, 1)], Settings())


def _view(stage: StageHandle, ids: SeededIds) -> None:
    clock = ManualClock(0.0, [])
    with open_view(stage, 0, consumer="c", settings=Settings(), ids=ids, clock=clock) as view:
        list(view)


READERS: dict[str, Read] = {
    "partition": lambda s, _: list(read_subpartition(s, require_seal(s), 0, Settings())),
    "pairs": lambda s, _: list(read_pairs(s, require_seal(s), 0, Settings())),
    "group": lambda s, _: list(read_group(s, require_seal(s), 0, 1, Settings())),
    "stream": lambda s, _: list(_piece(s)),
    "view": _view,
}


@pytest.mark.requirement("R-F135-30")
@pytest.mark.parametrize("reader", sorted(READERS))
def test_a_reader_holds_a_piece(reader: str, tmp_path: Path, ids: SeededIds) -> None:
    """An extent of 8 GiB without bytes: the segment is named, some pieces are held."""
    stage = forged_stage(LocalStorage(str(tmp_path)), ids, LENGTH)
    (segment,) = stage.storage.list(stage.path.segments_prefix)
    with bounded(MOST), pytest.raises(CorruptDataError, match=rf"magic.*segment='{segment.key}'"):
        READERS[reader](stage, ids)


def test_an_output_is_read_in_pieces(tmp_path: Path) -> None:
    """An output of 8 GiB without bytes: the output is named, some pieces are held."""
    storage = LocalStorage(str(tmp_path))
    sparse(storage, "job/out", LENGTH)
    output = OutputRef("job/out", LENGTH, 1, bytes(32))
    with bounded(MOST), pytest.raises(CorruptDataError, match=r"magic.*output='job/out'"):
        list(read_output(storage, output, SCHEMA))


def test_verify_and_repair_hold_a_piece(tmp_path: Path, ids: SeededIds) -> None:
    """A long segment without bytes is a finding; its producer runs again."""
    storage = LocalStorage(str(tmp_path))
    stage = forged_stage(storage, ids, HASHED)
    (segment,) = storage.list(stage.path.segments_prefix)
    with bounded(MOST):
        findings = check_stage(storage, stage.path, Settings(), released=False).findings
        assert {finding.key for finding in findings} == {segment.key}
        repaired = repair_stage(storage, stage.path, Settings(), ids=ids, generation=1)
    assert (repaired.outcome, repaired.run_again) == ("run again", (0,))


def test_a_compaction_is_checked_in_pieces(
    tmp_path: Path, ids: SeededIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compacted segment without bytes, as long as its COMPACT states, is a finding."""
    storage = LocalStorage(str(tmp_path))
    stage = new_stage(storage, ids, SCHEMA, partitions=1, producers=2)
    for p in range(2):
        rows = [(pa.record_batch([["x"]], schema=SCHEMA), np.zeros(1, np.uint16))]
        write(stage, p, rows, ids.new_id(), producers=2)
    seal(stage, 2, ids.new_id())
    monkeypatch.setattr(compaction, "_info", lambda n, _parts: SegmentInfo(n, HASHED, bytes(32)))
    compaction.compact_stage(stage, ids=ids, generation=1, settings=Settings())
    (moved,) = storage.list(stage.path.compacted_prefix)
    sparse(storage, moved.key, HASHED)
    with bounded(MOST):
        findings = check_stage(storage, stage.path, Settings(), released=False).findings
    assert [finding.key for finding in findings] == [moved.key]


def test_a_copy_for_a_repair_is_read_in_pieces(
    tmp_path: Path, ids: SeededIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction's index that names a long extent without bytes gives a repair nothing."""
    storage = LocalStorage(str(tmp_path))
    stage = forged_stage(storage, ids, HASHED)

    def long_tile(_stage: StageHandle, tile: compaction.Tile, _settings: Settings) -> SegmentInfo:
        sparse(storage, stage.path.compacted_key(tile.attempt, tile.number), HASHED)
        return SegmentInfo(tile.number, HASHED, bytes(32))

    monkeypatch.setattr(compaction, "write_tile", long_tile)
    monkeypatch.setattr(compaction, "small_extents", lambda entries, *_: np.arange(len(entries)))
    assert compaction.compact_stage(
        stage, ids=ids, generation=1, settings=Settings(), small_bytes=LENGTH
    ).won
    with bounded(MOST):
        repaired = repair_stage(storage, stage.path, Settings(), ids=ids, generation=1)
    assert (repaired.outcome, repaired.run_again) == ("run again", (0,))


@pytest.mark.requirement("R-F135-30")
def test_the_length_of_an_index_is_limited(
    tmp_path: Path, ids: SeededIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SEAL that states an index of 8 GiB is refused, by readers and by verify."""
    storage = LocalStorage(str(tmp_path))
    stage = forged_stage(storage, ids, 100)
    sealed, slot = require_seal(stage), 1
    log = stage_log(stage).slots
    with monkeypatch.context() as patch:
        patch.setattr(records, "MAX_WHOLE_BYTES", 1 << 40)
        log.mend(slot, STAGE_RECORDS.encode(replace(sealed, index_bytes=LENGTH)))
    sparse(storage, stage.path.index_key(sealed.index), LENGTH)
    with bounded(MOST):
        with pytest.raises(CorruptDataError, match=f"{log.key(slot)}.*index_bytes.*{LENGTH}"):
            require_seal(stage)
        findings = check_stage(storage, stage.path, Settings(), released=False).findings
    assert log.key(slot) in {finding.key for finding in findings}


def test_the_length_of_a_slice_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that gives one partition more bytes than are possible is neither made nor read."""
    slices = [np.zeros(1, dtype=INDEX_ENTRY)]
    data = index_objects(slices, bytes(16), partitions=1, key="i")["i"]
    monkeypatch.setattr(index, "MAX_SLICE_BYTES", len(data) - 77)
    with pytest.raises(InvalidInputError, match="1 extents of one partition take 14 bytes"):
        index_objects(slices, bytes(16), partitions=1, key="i")
    with pytest.raises(CorruptDataError, match=r"index entry is damaged.*key='i'"):
        parse_entry(data[40:76], 0, key="i", partitions=1, producers=1)


@pytest.mark.requirement("R-F135-30")
def test_the_length_of_a_state_is_limited() -> None:
    """A record cannot name a consumer's state over the limit."""
    StateRef("job/state", MAX_WHOLE_BYTES, bytes(32))
    with pytest.raises(InvalidInputError, match=f"state: expected at most {MAX_WHOLE_BYTES} bytes"):
        StateRef("job/state", MAX_WHOLE_BYTES + 1, bytes(32))
