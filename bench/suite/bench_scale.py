"""How cost grows: ten and thirty times the rows, ten times the partitions, thousands of both.

LINEITEM goes through `repartition` at scale 1, 10 and 30 (6, 60 and 180 million rows) with 200 and
2,000 partitions: the time per row at the larger scales must be within 1.15 of that at scale 1, and
the memory of the Python processes must not grow with the rows. Scale 30 runs once, at the end. Then
2,000 producers by 2,000 partitions of some rows each, against Spark's own. All end in a noop sink;
the storage is a local folder.

    BENCH_FULL=1 BENCH_ROUNDS=3 make bench ARGS=bench/suite/bench_scale.py
"""

import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from document import record
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.bench.tpch.data import generate

pytestmark = [pytest.mark.spark, pytest.mark.timeout(0), pytest.mark.long_bench]

BAR = 1.15
MEMORY_BAR = 1.25
"""Most that the largest Python process may grow with ten times the rows."""
HEAD = ("case", "s", "us per row", "to scale 1", "bar", "largest Python process", "rounds")
HEAD_SMALL = ("case", "Spark s", "stored s", "ratio", "rounds")


def noop(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


def descendants() -> Iterator[Path]:
    """Yield the folders in /proc of this process and of all below it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(_field(folder, "PPid"))
        except (OSError, ValueError):
            continue  # it ended
    below = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in below} - below:
        below |= more
    return (Path("/proc", str(pid)) for pid in below)


def _field(folder: Path, name: str) -> str:
    lines = (folder / "status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


def largest_python() -> int:
    """Return the peak bytes of the largest Python process below this one, the driver's too."""
    found = []
    for folder in descendants():
        try:
            if _field(folder, "Name").startswith("python"):
                found.append(int(_field(folder, "VmHWM")) << 10)
                (folder / "clear_refs").write_text("5")  # the next peak counts from here
        except (OSError, StopIteration):
            continue  # it ended, or is a zombie
    return max(found, default=0)


@pytest.mark.soak
@pytest.mark.parametrize("partitions", [200, 2000])
def test_ten_times_the_rows(
    benchmark: Any,
    bench_spark: SparkSession,
    cache: Path,
    rounds: int,
    measuring: bool,
    tmp_path: Path,
    partitions: int,
) -> None:
    """Seconds per row and memory; both scales take turns."""
    partitions = partitions if measuring else partitions // 100
    scales = {1: 1.0, 10: 10.0, 30: 30.0} if measuring else {1: 0.01, 10: 0.02, 30: 0.03}
    tables = {
        n: bench_spark.read.parquet(generate(cache, scale).lineitem) for n, scale in scales.items()
    }
    shuffle = DurableShuffle(bench_spark, str(tmp_path / "durable"), job="bench", reuse="never")
    rows = {n: table.count() for n, table in tables.items()}
    seconds: dict[int, list[float]] = {n: [] for n in tables}
    peaks: dict[int, int] = {}

    def take_turns() -> None:
        for turn in range(rounds + 1):
            for n, table in tables.items():
                if n == 30 and turn < rounds:
                    continue
                begun = time.perf_counter()
                noop(shuffle.repartition(table, partitions, "l_orderkey"))
                if turn or not measuring:
                    seconds[n].append(time.perf_counter() - begun)
                peaks[n] = max(peaks.get(n, 0), largest_python())
                assert shuffle.report().total()["rows"] >= rows[n]
                shuffle.release()

    benchmark.pedantic(take_turns, rounds=1)
    each = {n: [1e6 * s / rows[n] for s in found] for n, found in seconds.items()}
    ratios = {1: 1.0, 30: each[30][-1] / each[1][-1]}
    ratios[10] = statistics.median(b / a for a, b in zip(each[1], each[10], strict=True))
    grown = max(peaks.values()) / peaks[1]
    benchmark.extra_info.update(ratios=ratios, seconds=seconds, peaks=peaks)
    print(f"\n{partitions} partitions: time per row {ratios}, memory {grown:.2f}, {peaks}")
    if measuring:
        for n, found in seconds.items():
            cells = (
                f"{rows[n]:,} rows, {partitions:,} partitions",
                f"{statistics.median(found):.1f}",
                f"{statistics.median(each[n]):.2f}",
                f"{ratios[n]:.2f}",
                f"{BAR}",
                f"{peaks[n] / (1 << 20):.0f} MiB",
                str(len(found)),
            )
            record("scale", HEAD, cells)
        assert max(ratios.values()) <= BAR
        assert grown <= MEMORY_BAR


def test_thousands_of_both(
    benchmark: Any, bench_spark: SparkSession, rounds: int, measuring: bool, tmp_path: Path
) -> None:
    """2,000 producers by 2,000 partitions: 4 million extents of five rows."""
    many, rows = (2000, 20_000_000) if measuring else (6, 600)
    source = bench_spark.range(0, rows, 1, many)
    shuffle = DurableShuffle(bench_spark, str(tmp_path / "durable"), job="bench", reuse="never")

    def durable() -> None:
        noop(shuffle.repartition(source, many, "id"))
        shuffle.release()

    def native() -> None:
        noop(source.repartition(many, "id"))

    stored = shuffle.repartition(source, many, "id")
    assert stored.count() == rows
    report = shuffle.report().total()
    shuffle.release()
    cases = {"spark repartition": native, "durable": durable}
    timings = benchmark.pedantic(interleave, (cases,), {"rounds": rounds, "warmups": 0}, rounds=1)
    ratio = timings.ratio("durable", "spark repartition")
    benchmark.extra_info.update(ratio=ratio, seconds=dict(timings.seconds))
    print(f"\n{timings.table('spark repartition')}\n{report}")
    if measuring:
        seconds = [f"{timings.median(case):.1f}" for case in cases]
        case = f"{many:,} x {many:,}, {rows:,} rows"
        record("many", HEAD_SMALL, (case, *seconds, f"{ratio:.2f}", str(rounds)))
