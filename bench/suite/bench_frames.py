"""What do frames cost? Encode and decode of Arrow slices against a bare Arrow IPC stream.

Bar: at least 0.9 of the bare stream's throughput with the same codec (time ratio at most 1 / 0.9).
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.serialization.arrow_codec import decode_batch, iter_slices
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.serialization.frames import FrameKind, frame_parts

BAR = 0.9
STAGE = "0" * 32


def rows_like_lineitem(rows: int) -> pa.RecordBatch:
    """Return 16 columns: keys, decimals, dates, short and long strings."""
    rng = np.random.default_rng(42)
    numbers = [pa.array(rng.integers(0, 6_000_000, rows)) for _ in range(3)]
    numbers.append(pa.array(rng.integers(1, 8, rows).astype(np.int32)))
    money = [pa.array(rng.integers(0, 9_999_999, rows)) for _ in range(4)]
    decimals = [m.cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)) for m in money]
    dates = [pa.array(rng.integers(8000, 11000, rows).astype(np.int32)).cast(pa.date32())] * 3
    words = np.array(["AIR", "TRUCK", "MAIL", "SHIP", "RAIL", "REG AIR", "FOB"])
    short = [pa.array(words[rng.integers(0, len(words), rows)]) for _ in range(4)]
    comments = pa.array(
        [f"{words[i % 7]} haggle {i * 7919 % 99991} carefully" for i in range(rows)]
    )
    columns = [*numbers, *decimals, *dates, *short, comments]
    return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])


@pytest.mark.timeout(0)
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_frames_against_bare_ipc(benchmark: Any, codec: str, rounds: int, measuring: bool) -> None:
    """Both give the rows back; under --benchmark-enable frames keep 0.9 of the throughput."""
    batch = rows_like_lineitem(1_000_000 if measuring else 10_000)
    step = batch.num_rows // 32
    bounds = [(start, step) for start in range(0, step * 32, step)]
    options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
    reading = pa.ipc.IpcReadOptions(use_threads=False)

    def bare() -> int:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            for start, length in bounds:
                writer.write_batch(batch.slice(start, length))
        with pa.ipc.open_stream(sink.getvalue(), options=reading) as reader:
            return sum(b.num_rows for b in reader)

    def framed() -> int:
        ordinal, parts = 0, []
        for body, (_, rows) in zip(iter_slices(batch, bounds, codec), bounds, strict=True):
            seed = frame_seed(STAGE, 0, 0, ordinal)
            parts.extend(frame_parts(FrameKind.ARROW, rows, body, seed))
            ordinal += rows
        decoder = FrameDecoder(lambda at: frame_seed(STAGE, 0, 0, at))
        for part in parts:
            decoder.feed(part)
        total = 0
        while (frame := decoder.next_frame()) is not NEED_DATA:
            total += decode_batch(frame.body, batch.schema).num_rows
        return total

    assert bare() == framed() == step * 32
    timings = benchmark.pedantic(
        interleave,
        ({"bare ipc": bare, "frames": framed},),
        {"rounds": rounds * 3, "warmups": 1},
        rounds=1,
    )
    throughput = timings.ratio("bare ipc", "frames")
    benchmark.extra_info.update(throughput=throughput, table=timings.table("bare ipc"))
    print(f"\n{codec}\n{timings.table('bare ipc')}\nthroughput {throughput:.2f}, bar {BAR}")
    assert not measuring or throughput >= BAR
