"""Segments that verify does not hold whole: the same findings, in bounded memory."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from memory_bound import bounded
from small_stage import SeededIds, new_stage, seal, write

from durable_shuffle.serialization.errors import ErrorKind
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.extent_table import EXTENT
from durable_shuffle.shuffle.log.records import SegmentInfo
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.verify import segment
from durable_shuffle.shuffle.verify.segment import SegmentTask, check_segment
from durable_shuffle.shuffle.verify.stage import check_stage

SCHEMA = pa.schema([("text", pa.string())])


def test_a_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    """A forged COMMIT and index over a file of 1 GiB without bytes: a finding, some pieces held."""
    size = 1 << 30
    with (tmp_path / "s").open("wb") as file:
        os.truncate(file.fileno(), size)
    extent = np.array([(0, 0, 0, size, 0, 1)], dtype=EXTENT)
    info = SegmentInfo(0, size, bytes(32))
    task = SegmentTask("s", "0" * 32, 0, info, extent, SCHEMA, 1 << 20)
    with bounded(8 * segment.PIECE_BYTES):
        found = check_segment(LocalStorage(str(tmp_path)), task)
    assert [finding.kind for finding in found.findings] == [ErrorKind.CORRUPT_DATA] * 2


@pytest.mark.parametrize("harm", ["none", "bit", "short", "long"])
@pytest.mark.parametrize("piece", [100, 5000])
def test_pieces_find_what_the_whole_finds(
    harm: str, piece: int, ids: SeededIds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in pieces shorter and longer than frames and rows, a segment has the same findings."""
    memory = MemoryStorage()
    stage = new_stage(memory, ids, SCHEMA, partitions=3, producers=1, compression="none")
    texts = [["x" * 40] * 50 + ["y" * (3 << 20)] + ["z" * 300] * 50]
    batch = pa.record_batch(texts, schema=SCHEMA)
    settings = Settings(max_frame_bytes=1 << 20, frame_bytes=1024)
    write(stage, 0, [(batch, np.arange(101, dtype=np.uint16) % 3)], ids.new_id(), settings=settings)
    seal(stage, 1, ids.new_id())
    (info,) = memory.list(stage.path.segments_prefix)
    data = bytearray(memory.read(info.key))
    if harm == "bit":
        data[len(data) // 2] ^= 1
    changed = {"short": bytes(data[:-9]), "long": bytes(data) + b"1"}.get(harm, bytes(data))
    memory.delete([info.key])
    memory.put(info.key, [changed])
    whole = check_stage(memory, stage.path, settings, released=False)
    monkeypatch.setattr(segment, "WHOLE_BYTES", 0)
    monkeypatch.setattr(segment, "PIECE_BYTES", piece)
    found = check_stage(memory, stage.path, settings, released=False)
    assert bool(found.findings) == bool(whole.findings) == (harm != "none")
    assert {f.key for f in found.findings} == {f.key for f in whole.findings} <= {info.key}
    if harm in ("none", "bit"):
        assert found.findings == whole.findings
