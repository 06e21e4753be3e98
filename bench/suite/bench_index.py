"""A stage of 10,000 by 10,000: its index, and the memory of the driver that seals it.

The COMMITs are made up: each names an extent per partition in one segment. All objects are real,
but of a segment only the frames of one partition are written; the rest of the file is a hole. The
driver is a process of its own, and its memory counts from its start. Bars: at most 10 bytes of the
index per extent, 100 KiB for a COMMIT's extents, 2 GiB for the driver.
"""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from document import record
from small_stage import SeededIds, new_stage

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.extent_table import EXTENT, pack_block
from durable_shuffle.shuffle.log.producer_log import commit_attempt
from durable_shuffle.shuffle.log.records import Commit, SegmentInfo
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.seal.index import WHOLE_INDEX_BYTES
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.write.segments import build_segment

SCHEMA = pa.schema([("n", pa.int64())])
SEGMENT_BYTES = 64 << 20
ROWS = 3
"""Of each producer in the partition that is read."""
GIB = 1 << 30
HEAD = ("case", "bytes per extent", "COMMIT", "index", "seal s", "read s", "requests", "driver")


def write_commit(
    stage: StageHandle, producer: int, attempt: str, producers: int, k: int, draw: Any
) -> int:
    """Commit one producer; return the bytes of its list of extents."""
    partitions, settings = stage.describe.partitions, Settings()
    real = build_segment(
        pa.record_batch([np.full(ROWS, producer)], schema=SCHEMA),
        np.full(ROWS, k, dtype=np.uint32),
        partitions=partitions,
        number=0,
        stage_id=stage.path.incarnation,
        producer=producer,
        next_ordinals=np.zeros(partitions, dtype=np.uint64),
        compression="none",
        frame_bytes=settings.frame_bytes,
    )
    extents = np.zeros(partitions, dtype=EXTENT)
    extents["subpartition"] = np.arange(partitions)
    mean = SEGMENT_BYTES // partitions
    extents["length"] = draw.integers(mean // 2, mean * 3 // 2, partitions) // 8 * 8 + 8
    extents["length"][k] = real.info.length
    extents["offset"] = np.cumsum(extents["length"]) - extents["length"]
    extents["rows"] = extents["length"] // 64 + 1
    extents["rows"][k] = ROWS
    size = int(extents["length"].sum())
    path = Path(
        stage.storage.description.removeprefix("file:"),
        stage.path.segment_key(producer, attempt, 0),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.seek(int(extents["offset"][k]))
        for part in real.parts:
            file.write(part)
        file.truncate(size)
    packed, rows = pack_block(extents, "subpartition"), int(extents["rows"].sum())
    segments = (SegmentInfo(0, size, bytes(32)),)
    commit = Commit(attempt, producer, producers, rows, 8 * rows, segments, packed)
    commit_attempt(stage.producer_log(producer), commit)
    return len(packed)


@pytest.mark.timeout(0)
@pytest.mark.long_bench
def test_index_of_a_very_large_shuffle(benchmark: Any, measuring: bool, tmp_path: Path) -> None:
    """M = R = 10,000; M = R = 60 as a plain test."""
    many = 10_000 if measuring else 60
    ids, draw, k = SeededIds(random.Random(7)), np.random.default_rng(7), many // 3
    stage = new_stage(LocalStorage(str(tmp_path)), ids, SCHEMA, partitions=many, producers=many)
    packed = [write_commit(stage, p, ids.new_id(), many, k, draw) for p in range(many)]

    def seal_and_read() -> dict[str, Any]:
        path = stage.path
        names = path.name, path.fingerprint, path.incarnation, str(many), str(k)
        command = [sys.executable, str(Path(__file__).with_name("index_process.py"))]
        done = subprocess.run(
            [*command, str(tmp_path), *names], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    found: dict[str, Any] = benchmark.pedantic(seal_and_read, rounds=1)
    print(json.dumps(found, indent=1))
    steps = found["steps"]
    assert (found["rows"], found["sizes"]) == (ROWS * many, many)
    size, peak = sum(found["index"]) / many**2, steps["read one partition"]["peak_bytes"]
    used = peak - steps["start"]["peak_bytes"]
    # the table and the slice of the partition, or a small index, and one range for each extent
    of_index = 2 if sum(found["index"]) > WHOLE_INDEX_BYTES else 1
    assert steps["read one partition"]["requests"] == of_index + many
    if measuring:
        assert size <= 10
        assert max(packed) <= 100 << 10
        assert used <= 2 * GIB
        record(
            "index",
            HEAD,
            (
                f"M = R = {many:,}",
                f"{size:.1f}",
                f"{max(packed) / 1024:.0f} KiB",
                f"{sum(found['index']) / 1e6:,.0f} MB in {len(found['index'])} objects",
                f"{steps['read the COMMITs']['seconds'] + steps['seal']['seconds']:.0f}",
                f"{steps['read one partition']['seconds']:.1f}",
                f"2 + {many:,} extents",
                f"{used / (1 << 20):.0f} MiB",
            ),
        )
