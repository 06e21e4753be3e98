"""The workloads W1, W2, W4 and W5: Arrow batches from a seed, a map, a reduce, and the answer.

Strategy: producer p makes its rows from (seed, p, batch number), so any two runs have the same
input and nothing has to be read from disk. Answers come from DuckDB over the same rows. W3, whole
TPC-H queries, has data and answers of its own (`demo/tpch_*`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from durable_shuffle.shuffle.base.clock import SystemClock

BATCH_ROWS = 10_000
W1_BUCKETS = 4096
W2_KEYS = 100_000
W2_EXPONENT = 1.3
"""Of the Zipf distribution: the most frequent key has a quarter of all rows."""
W4_KEYS = 10_000
HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload; rows and seconds at scale 1."""

    name: str
    rows: int
    maps: int
    reduces: int
    key: str
    """Column by which rows are partitioned."""
    mapped: str
    """Schema of the rows that are shuffled, as Spark writes it."""
    reduced: str
    """Schema of the answer; `k` and `rows` are always there."""
    answer: str
    """SQL over the table `input`."""
    map_batch_seconds: float = 0.0
    """What 10,000 rows cost besides, in whatever batches they come."""
    reduce_batch_seconds: float = 0.0

    def rows_of(self, scale: float, partition: int) -> int:
        """Return how many rows a producer makes: all alike, at least one."""
        del partition
        return max(1, int(self.rows * scale) // self.maps)


WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "W1", 10_000_000, 16, 16, "k",
            "k long, key binary, weight long, payload binary",
            "k long, rows long, low binary, high binary, weight long",
            "SELECT k, count(*) AS rows, min(key) AS low, max(key) AS high,"
            " sum(weight)::BIGINT AS weight FROM input GROUP BY k",
        ),
        Workload(
            "W2", 20_000_000, 16, 16, "k",
            "k long, value long",
            "k long, rows long, total long",
            "SELECT k, count(*) AS rows, sum(value)::BIGINT AS total FROM input GROUP BY k",
        ),
        Workload(
            "W4", 4_000_000, 8, 10, "k",
            "k long, id long, digest string",
            "k long, rows long, total long, last string",
            "SELECT k, count(*) AS rows, sum(id)::BIGINT AS total, max(digest) AS last"
            " FROM input GROUP BY k",
            map_batch_seconds=0.04, reduce_batch_seconds=0.05,
        ),
        Workload(
            "W5", 400_000, 4, 4, "k",
            "k long, id long",
            "k long, rows long",
            "SELECT id AS k, count(*) AS rows FROM input GROUP BY id",
            reduce_batch_seconds=0.02,
        ),
    )
}  # fmt: skip


def batches_of(name: str, seed: int, partition: int, rows: int) -> Batches:
    """Yield a producer's rows, the same for the same arguments."""
    make = {"W1": _w1, "W2": _w2, "W4": _w4, "W5": _w5}[name]
    for number, first in enumerate(range(0, rows, BATCH_ROWS)):
        draw = np.random.default_rng([seed, partition, number])
        yield make(draw, partition * rows + first, min(BATCH_ROWS, rows - first))


def _w1(draw: np.random.Generator, first: int, rows: int) -> pa.RecordBatch:
    del first
    bits = draw.integers(0, 256, (rows, 100), dtype=np.uint8)
    keys, payload = np.ascontiguousarray(bits[:, :10]), np.ascontiguousarray(bits[:, 10:])
    bucket = (keys[:, 0].astype(np.int64) << 8 | keys[:, 1]) * W1_BUCKETS >> 16
    weight = np.ascontiguousarray(bits[:, 10:14]).view("<u4").ravel().astype(np.int64)
    return pa.record_batch(
        [pa.array(bucket), _binary(keys), pa.array(weight), _binary(payload)],
        names=["k", "key", "weight", "payload"],
    )


def _w2(draw: np.random.Generator, first: int, rows: int) -> pa.RecordBatch:
    keys = (draw.zipf(W2_EXPONENT, rows) % W2_KEYS).astype(np.int64)
    values = np.arange(first, first + rows, dtype=np.int64)
    return pa.record_batch([pa.array(keys), pa.array(values)], names=["k", "value"])


def _w4(draw: np.random.Generator, first: int, rows: int) -> pa.RecordBatch:
    ids = np.arange(first, first + rows, dtype=np.int64)
    digest = HEX[draw.integers(0, 16, (rows, 64), dtype=np.uint8)]
    keys = draw.integers(0, W4_KEYS, rows, dtype=np.int64)
    return pa.record_batch(
        [pa.array(keys), pa.array(ids), _binary(digest).cast(pa.string())],
        names=["k", "id", "digest"],
    )


def _w5(draw: np.random.Generator, first: int, rows: int) -> pa.RecordBatch:
    ids = np.arange(first, first + rows, dtype=np.int64)
    keys = draw.integers(0, 1 << 40, rows, dtype=np.int64)
    return pa.record_batch([pa.array(keys), pa.array(ids)], names=["k", "id"])


def _binary(table: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]") -> pa.Array:
    """Return one binary value per row of a table of bytes."""
    rows, width = table.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(table))]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def reduced(name: str, batches: Batches) -> Batches:
    """Yield the answer of one partition."""
    table = pa.Table.from_batches(list(batches)) if (batches := list(batches)) else None  # type: ignore[assignment]
    if table is None:
        return
    if name == "W1":
        table = table.sort_by([("k", "ascending"), ("key", "ascending")])
        grouped = table.group_by("k", use_threads=False).aggregate(
            [("key", "count"), ("key", "first"), ("key", "last"), ("weight", "sum")]
        )
        columns = ["k", "key_count", "key_first", "key_last", "weight_sum"]
    elif name == "W2":
        grouped = table.group_by("k").aggregate([("value", "count"), ("value", "sum")])
        columns = ["k", "value_count", "value_sum"]
    else:
        grouped = table.group_by("k").aggregate([("id", "count"), ("id", "sum"), ("digest", "max")])
        columns = ["k", "id_count", "id_sum", "digest_max"]
    names = [field.split()[0] for field in WORKLOADS[name].reduced.split(", ")]
    yield from grouped.select(columns).rename_columns(names).to_batches()


def slowed(batches: Batches, seconds: float) -> Batches:
    """Pass batches on, after so many seconds per 10,000 rows: systems batch rows differently."""
    clock = SystemClock()
    for batch in batches:
        if seconds:
            clock.sleep(seconds * batch.num_rows / BATCH_ROWS)
        yield batch


def all_input(workload: Workload, scale: float, seed: int) -> pa.Table:
    """Return every row that the producers make."""
    parts: list[pa.RecordBatch] = []
    for partition in range(workload.maps):
        rows = workload.rows_of(scale, partition)
        parts += batches_of(workload.name, seed, partition, rows)
    return pa.Table.from_batches(parts)
