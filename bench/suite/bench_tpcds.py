"""What does TPC-DS cost, durably? Its queries against native AQE, taking turns, and a second run.

Bar: geometric mean at most 1.3 of native. Writes its tables of docs/benchmarks.md; the mean is that
of all queries in the table. `BENCH_QUERIES` names the queries, by default all 103 texts; without
measuring, one of them runs once at scale 0.01.
"""

import os
import shutil
import statistics
from pathlib import Path
from typing import Any

import pytest
from document import cells_of, record
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.bench.tpcds.data import create_views, generate
from durable_shuffle.bench.tpcds.queries import TPCDS_NAMES, tpcds_query
from durable_shuffle.bench.tpch.answers import differing_rows

GEOMETRIC_MEAN_BAR = 1.3
HEAD = ("query", "Spark s", "durable s", "durable / Spark", "again s", "exchanges", "rounds")
MEAN_HEAD = ("mean", "queries", "geometric mean", "bar", "worst")


@pytest.fixture
def tpcds(bench_spark: SparkSession, measuring: bool, cache: Path) -> SparkSession:
    """All else as users have it: 200 shuffle partitions, adaptive execution on."""
    session = bench_spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "200")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    create_views(session, generate(cache, 1.0 if measuring else 0.01))
    return session


@pytest.mark.spark
@pytest.mark.long_bench
@pytest.mark.timeout(0)
def test_tpcds_against_native(
    benchmark: Any, tpcds: SparkSession, rounds: int, measuring: bool, tmp_path: Path
) -> None:
    """Rows are Spark's, and a second run of a query runs no producer."""
    named = os.environ.get("BENCH_QUERIES", ",".join(TPCDS_NAMES) if measuring else "q93")

    def measure(query: str) -> None:
        root, stored = tmp_path / query, tmp_path / f"{query}-stored"
        durable = DurableShuffle(tpcds, str(root), job="bench", reuse="never")
        kept = DurableShuffle(tpcds, str(stored), job="bench")
        cases = {
            "native": lambda: tpcds.sql(tpcds_query(query)).collect(),
            "durable": lambda: durable.query(tpcds.sql(tpcds_query(query))).collect(),
            "again": lambda: kept.query(tpcds.sql(tpcds_query(query))).collect(),
        }
        assert differing_rows(cases["native"](), cases["durable"]()) == 0
        exchanges = len(durable.report().stages)
        cases["again"]()
        ran = kept.report().total()["producers_run"]
        timings = interleave(cases, rounds=rounds, warmups=0)
        assert kept.report().total()["producers_run"] == ran
        shutil.rmtree(root)
        shutil.rmtree(stored)
        medians = [f"{timings.median(case):.2f}" for case in cases]
        ratio = f"{timings.ratio('durable', 'native'):.2f}"
        row = (query, *medians[:2], ratio, medians[2], str(exchanges), str(rounds))
        print("  ".join(row))
        if measuring:
            record("tpcds", HEAD, row)

    def all_of_them() -> None:
        for query in named.split(","):
            measure(query)

    benchmark.pedantic(all_of_them, rounds=1)
    if measuring:
        ratios = [float(cells[3]) for cells in cells_of("tpcds")]
        mean = statistics.geometric_mean(ratios)
        figures = (str(len(ratios)), f"{mean:.2f}", str(GEOMETRIC_MEAN_BAR), f"{max(ratios):.2f}")
        record("tpcds-mean", MEAN_HEAD, ("of the table below", *figures))
        assert mean <= GEOMETRIC_MEAN_BAR
