"""What does TPC-DS cost, durably? Its queries against native AQE, taking turns, and a second run.

Bar: geometric mean at most 1.3 of native with the default `at_risk`, which stores every exchange.
Beside it, 10 s of work may be at risk, and a second run finds everything stored. Writes its tables
of docs/benchmarks.md; a mean is that of all queries in the table. `BENCH_QUERIES` names the
queries, by default all 103 texts; without measuring, one of them runs once at scale 0.01.
"""

import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from document import cells_of, record
from places import Place
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.bench.tpcds.data import create_views, generate
from durable_shuffle.bench.tpcds.queries import TPCDS_NAMES, tpcds_query
from durable_shuffle.bench.tpch.answers import differing_rows

GEOMETRIC_MEAN_BAR = 1.3
AT_RISK = "10 s"
HEAD = (
    *("query", "Spark s", "stored s", "10 s at risk", "stored / Spark", "at risk / Spark"),
    *("again s", "exchanges", "rounds"),
)
MEAN_HEAD = ("mean", "queries", "geometric mean", "bar", "worst")


@pytest.fixture
def tpcds(bench_spark: SparkSession, measuring: bool, cache: Path) -> SparkSession:
    """All else as users have it: 200 shuffle partitions, adaptive execution on."""
    session = bench_spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "200")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    create_views(session, generate(cache, 1.0 if measuring else 0.01))
    return session


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.long_bench
@pytest.mark.timeout(0)
def test_tpcds_against_native(
    benchmark: Any, tpcds: SparkSession, rounds: int, measuring: bool, place: Place
) -> None:
    """Rows are Spark's, and a second run of a query runs no producer."""
    named = os.environ.get("BENCH_QUERIES", ",".join(TPCDS_NAMES) if measuring else "q93")

    def measure(query: str) -> None:
        root = place.new()
        kept: list[DurableShuffle] = []

        def run(shuffle: DurableShuffle) -> list[Any]:
            rows: list[Any] = shuffle.query(tpcds.sql(tpcds_query(query))).collect()
            return rows

        def stored() -> list[Any]:
            kept.append(root.open(tpcds, job=f"stored{len(kept)}"))
            return run(kept[-1])

        def again() -> list[Any]:
            ran = kept[-1].report().total()["map_tasks_run"]
            rows = run(kept[-1])
            assert kept[-1].report().total()["map_tasks_run"] == ran
            return rows

        left = root.open(tpcds, job="left", reuse="never", at_risk=AT_RISK)
        cases: dict[str, Callable[[], Any]] = {
            "native": lambda: tpcds.sql(tpcds_query(query)).collect(),
            "stored": stored,
            "at risk": lambda: run(left),
            "again": again,
        }
        expected = cases["native"]()
        for case in ("at risk", "stored", "again"):
            assert differing_rows(expected, cases[case]()) == 0, case
        exchanges = len({stage.incarnation for stage in kept[-1].report().stages})
        timings = interleave(cases, rounds=rounds, warmups=0)
        root.clear()
        medians = [f"{timings.median(case):.2f}" for case in cases]
        ratios = [f"{timings.ratio(case, 'native'):.2f}" for case in ("stored", "at risk")]
        row = (query, *medians[:3], *ratios, medians[3], str(exchanges), str(rounds))
        print("  ".join(row))
        if measuring:
            record("tpcds", HEAD, row)

    def all_of_them() -> None:
        for query in named.split(","):
            measure(query)

    benchmark.pedantic(all_of_them, rounds=1)
    if measuring:
        means = {}
        cases = ((4, "all stored", f"{GEOMETRIC_MEAN_BAR}"), (5, f"{AT_RISK} at risk", ""))
        for column, case, bar in cases:
            ratios = [float(cells[column]) for cells in cells_of("tpcds")]
            means[case] = statistics.geometric_mean(ratios)
            figures = (str(len(ratios)), f"{means[case]:.2f}", bar, f"{max(ratios):.2f}")
            record("tpcds-mean", MEAN_HEAD, (case, *figures))
        assert means["all stored"] <= GEOMETRIC_MEAN_BAR
