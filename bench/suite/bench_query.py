"""What does a durable query cost? The 22 TPC-H queries against native AQE, taking turns.

Bars: geometric mean at most 1.10 of native with the default `at_risk`, which stores every exchange,
and no query above 1.8. With BENCH_FULL=1 also over tables whose foreign keys are skewed. Writes its
tables of docs/benchmarks.md; a mean is that of all queries in its table. `BENCH_QUERIES` names the
queries to measure, by default two, with BENCH_FULL=1 all.
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
from durable_shuffle.bench.tpch.skewed import generate_skewed

GEOMETRIC_MEAN_BAR = 1.1
ONE_QUERY_BAR = 1.8
HEAD = ("query", "Spark s", "durable s", "durable / Spark", "exchanges", "rounds")
MEAN_HEAD = ("mean", "queries", "geometric mean", "bar", "worst")


BLOCKS = {"as generated": "queries", "skewed": "queries-skewed"}
"""Data -> its table of the document."""


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Which data; a key of BLOCKS."""
    return str(request.param)


@pytest.fixture
def files(measuring: bool, cache: Path, kind: str) -> TpchFiles:
    make = generate_skewed if kind == "skewed" else generate_all
    return make(cache, 1.0 if measuring else 0.01)


@pytest.fixture
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
@pytest.mark.parametrize(
    "kind",
    ["as generated", pytest.param("skewed", marks=pytest.mark.long_bench)],
    indirect=True,
)
def test_queries_against_native(
    benchmark: Any,
    tpch: SparkSession,
    files: TpchFiles,
    kind: str,
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
        if not told(query, timings, exchanges, BLOCKS[kind] if measuring else None):
            missed.append(query)

    def all_of_them() -> None:
        for query in queries(measuring=measuring):
            measure(query)

    benchmark.pedantic(all_of_them, rounds=1)
    if measuring:
        benchmark.extra_info["ratios"] = measured
        mean = told_mean(kind)
        assert not missed
        assert mean <= GEOMETRIC_MEAN_BAR


def told(query: str, timings: Timings, exchanges: int, block: str | None) -> bool:
    """Show what one query took, put it into the document, and return whether it is in its bar."""
    medians = [f"{timings.median(case):.2f}" for case in ("native", "durable")]
    ratio = timings.ratio("durable", "native")
    good = ratio <= ONE_QUERY_BAR
    shown = f"{ratio:.2f}" if good else f"{ratio:.2f} (missed)"
    rounds = str(len(timings.seconds["native"]))
    row = (query, *medians, shown, str(exchanges), rounds)
    print("  ".join(row))
    if block is not None:
        record(block, HEAD, row)
    return good


def told_mean(kind: str) -> float:
    """Put the mean of a table into the document, and return it."""
    ratios = [float(cells[3].split()[0]) for cells in cells_of(BLOCKS[kind])]
    mean = statistics.geometric_mean(ratios)
    figures = (f"{mean:.2f}", f"{GEOMETRIC_MEAN_BAR:.2f}", f"{max(ratios):.2f}")
    record("queries-mean", MEAN_HEAD, (f"tables {kind}", str(len(ratios)), *figures))
    return mean
