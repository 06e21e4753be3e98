"""What does a durable query cost? The 22 TPC-H queries against native AQE, taking turns.

Bars: geometric mean at most 2.0 of native, no query above the larger of 4 times native and native
plus a second per exchange. Writes its tables of docs/benchmarks.md; the mean is that of all queries
in the table. `BENCH_QUERIES` names the queries to measure, by default two, with BENCH_FULL=1 all.
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
from durable_shuffle.bench.interleaved import Timings, interleave
from durable_shuffle.bench.tpch.answers import Answers
from durable_shuffle.bench.tpch.data import TpchFiles, generate_all
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES, TPCH_TABLES

GEOMETRIC_MEAN_BAR = 2.0
ONE_QUERY_BAR = 4.0
SECONDS_PER_EXCHANGE = 1.0
HEAD = ("query", "Spark s", "durable s", "durable / Spark", "exchanges", "rounds")
MEAN_HEAD = ("mean", "queries", "geometric mean", "bar", "worst")


@pytest.fixture(scope="module")
def files(measuring: bool, cache: Path) -> TpchFiles:
    return generate_all(cache, 1.0 if measuring else 0.01)


@pytest.fixture(scope="module")
def tpch(bench_spark: SparkSession, files: TpchFiles) -> SparkSession:
    """All else as users have it: 200 shuffle partitions, adaptive execution on."""
    session = bench_spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "200")
    session.conf.set("spark.sql.session.timeZone", "UTC")
    for table in TPCH_TABLES:
        session.read.parquet(str(files.folder / table)).createOrReplaceTempView(table)
    return session


def queries(*, measuring: bool) -> list[str]:
    usual = ["q03", "q18"] if measuring else ["q12"]
    usual = list(TPCH_QUERIES) if measuring and os.environ.get("BENCH_FULL") == "1" else usual
    return os.environ.get("BENCH_QUERIES", ",".join(usual)).split(",")


@pytest.mark.spark
@pytest.mark.timeout(0)
def test_queries_against_native(
    benchmark: Any,
    tpch: SparkSession,
    files: TpchFiles,
    rounds: int,
    measuring: bool,
    tmp_path: Path,
) -> None:
    """Rows are DuckDB's; under --benchmark-enable the ratios are within the bars."""
    answers = Answers(files)
    missed: list[str] = []
    measured: dict[str, float] = {}

    def measure(query: str) -> None:
        root = tmp_path / query
        durable = DurableShuffle(tpch, str(root), job="bench", reuse="never")

        def run() -> list[Any]:
            rows: list[Any] = durable.query(tpch.sql(TPCH_QUERIES[query])).collect()
            return rows

        assert answers.differing(query, run()) == 0
        exchanges = len(durable.report().stages)
        cases = {"native": lambda: tpch.sql(TPCH_QUERIES[query]).collect(), "durable": run}
        cases["native"]()
        timings = interleave(cases, rounds=rounds, warmups=0)
        shutil.rmtree(root)
        measured[query] = timings.ratio("durable", "native")
        if not told(query, timings, exchanges, write=measuring):
            missed.append(query)

    def all_of_them() -> None:
        for query in queries(measuring=measuring):
            measure(query)

    benchmark.pedantic(all_of_them, rounds=1)
    if measuring:
        benchmark.extra_info["ratios"] = measured
        assert not missed
        ratios = [float(cells[3].split()[0]) for cells in cells_of("queries")]
        assert statistics.geometric_mean(ratios) <= GEOMETRIC_MEAN_BAR


def told(query: str, timings: Timings, exchanges: int, *, write: bool) -> bool:
    """Show what one query took, put it into the document, and return whether it is in its bar."""
    native, durable = timings.median("native"), timings.median("durable")
    ratio = timings.ratio("durable", "native")
    good = durable <= max(ONE_QUERY_BAR * native, native + SECONDS_PER_EXCHANGE * exchanges)
    shown = f"{ratio:.2f}" if good else f"{ratio:.2f} (missed)"
    rounds = str(len(timings.seconds["native"]))
    row = (query, f"{native:.2f}", f"{durable:.2f}", shown, str(exchanges), rounds)
    print("  ".join(row))
    if write:
        record("queries", HEAD, row)
        ratios = [float(cells[3].split()[0]) for cells in cells_of("queries")]
        mean = f"{statistics.geometric_mean(ratios):.2f}"
        bar, worst = str(GEOMETRIC_MEAN_BAR), f"{max(ratios):.2f}"
        record(
            "queries-mean", MEAN_HEAD, ("of the table below", str(len(ratios)), mean, bar, worst)
        )
    return good
