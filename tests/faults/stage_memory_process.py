"""Maps and reduces a stage of a given size in one process, and prints how much memory that took.

usage: stage_memory_process.py FOLDER BATCHES REDUCER WRITER_MIB; prints MiB above what an idle
worker has, after the map and after the reduce.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np
import pyarrow as pa
from small_stage import new_stage, seal

from durable_shuffle import Grouped
from durable_shuffle.jobs.python_stage.tasks import MapSide, ReduceSide, use_frugal_memory
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.rows.row_order import SortKey
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.write.producer import run_producer

PARTITIONS = 2
ROWS = 16_384
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.binary(48))])


def rows(count: int) -> Iterator[pa.RecordBatch]:
    """Batches of 1 MiB of random bytes, made one at a time."""
    rng = np.random.default_rng(7)
    for _ in range(count):
        text = pa.Array.from_buffers(
            pa.binary(48), ROWS, [None, pa.py_buffer(rng.bytes(48 * ROWS))]
        )
        keys = pa.array(rng.integers(0, 64, ROWS))
        yield pa.RecordBatch.from_arrays(
            [keys, pa.array(rng.integers(0, 1 << 60, ROWS)), text], schema=SCHEMA
        )


def counted(group: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": [sum(batch.num_rows for batch in group)]})


def peak_mib() -> float:
    """The most that was ever resident, of this program alone: rusage also knows who started it."""
    (line,) = [
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    ]
    return int(line.split()[1]) / 1024


def main(folder: str, batches: int, kind: str, writer_mib: int) -> None:
    settings = Settings(
        writer_memory_bytes=writer_mib << 20,
        reduce_memory_bytes=writer_mib << 20,
        frame_bytes=1 << 20,
        compression="none",
    )
    reducers: dict[str, Any] = {
        "generator": counted,
        "sorted": counted,
        "grouped": Grouped(counted, streamed=True),
    }
    ids, storage = RandomIds(), LocalStorage(Path(folder))
    stage = new_stage(storage, ids, SCHEMA, partitions=PARTITIONS, compression="none")
    use_frugal_memory()
    idle = peak_mib()
    side = MapSide(
        feed=lambda given: given,
        map=lambda given: given,
        schema=SCHEMA,
        keys=("k",),
        combine=None,
    )
    run_producer(
        stage,
        0,
        side.id_batches(stage, rows(batches), writer_mib << 20),
        attempt=ids.new_id(),
        producers=1,
        settings=settings,
    )
    mapped = peak_mib()
    reduce = ReduceSide(
        stage=stage,
        seal=seal(stage, 1, ids.new_id()),
        names=("k", "v", "s"),
        reduce=reducers[kind],
        keys=("k",),
        sort_by=(SortKey("v"),) if kind == "sorted" else (),
        schema=pa.schema([("n", pa.int64())]),
        tasks=tuple(range(k, k + 1) for k in range(PARTITIONS)),
        settings=settings,
        code="",
        identity="",
    )
    found = sum(
        sum(made.column("n").to_pylist()) for k in range(PARTITIONS) for made in reduce.reduced(k)
    )
    assert found == batches * ROWS
    print(mapped - idle, peak_mib() - idle)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
