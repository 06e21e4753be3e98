"""What the benchmark's task processes import: a source at a steady pace, a step that tells when."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

ROWS = pa.schema([("n", pa.int64())])
BATCH = 1000


@dataclass(frozen=True)
class Paced:
    """Batches of rows with a pause between them, which leaves the machine room. What is late stays
    late: nothing is made good that a disturbance cost."""

    batches_per_second: int

    def __call__(self, position: Any, producer: int) -> Iterator[Any]:
        n = position or 0
        while True:
            rows = pa.record_batch([pa.array(range(n, n + BATCH), pa.int64())], schema=ROWS)
            n += BATCH
            yield rows, n
            time.sleep(1 / self.batches_per_second)


@dataclass(frozen=True)
class Timed:
    """Writes the moment, the process and the highest row of each batch to a file."""

    path: str

    def __call__(self, batch: pa.RecordBatch) -> None:
        line = f"{time.monotonic()} {os.getpid()} {max(batch.column(0).to_pylist())}\n"
        with Path(self.path).open("a") as told:
            told.write(line)
