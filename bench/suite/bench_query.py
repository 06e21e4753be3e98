"""What does a durable query cost? The 22 TPC-H queries against native AQE, taking turns.

Bars: geometric mean at most 1.10 of native with the default `at_risk`, which stores every exchange,
and no query above 1.8. Beside it, 10 s of work may be at risk. With BENCH_FULL=1 also over tables
whose foreign keys are skewed. Writes its tables of docs/benchmarks.md; a mean is that of all
queries in its table. `BENCH_QUERIES` names the queries to measure, by default two, with
BENCH_FULL=1 all. `BENCH_AGAINST=celeborn` has Spark with that service take turns with them; then
the mean must also be below the service's.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from document import cells_of, record
from places import Place
from pyspark.sql import SparkSession
from rival import Rival, asked_peer
from user_session import tpch_session

from durable_shuffle.bench.interleaved import Timings, interleave
from durable_shuffle.bench.tpch.answers import Answers
from durable_shuffle.bench.tpch.data import TpchFiles, generate_all
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES
from durable_shuffle.bench.tpch.skewed import generate_skewed
from durable_shuffle.jobs.query.at_risk import NOTHING
from durable_shuffle.shuffle.base.clock import SystemClock

GEOMETRIC_MEAN_BAR = 1.1
ONE_QUERY_BAR = 1.8
HEAD = (
    *("query", "Spark s", "stored s", "10 s at risk", "stored / Spark", "at risk / Spark"),
    *("exchanges", "rounds"),
)
MEAN_HEAD = ("mean", "queries", "geometric mean", "bar", "worst")
RIVAL = "rival"
AT_RISK = "10 s"

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
    return tpch_session(bench_spark, files.folder)


@pytest.fixture
def rival(files: TpchFiles, tmp_path: Path) -> Iterator[Rival | None]:
    """The service of BENCH_AGAINST, if that is set."""
    peer = asked_peer(os.environ)
    if peer is None:
        yield None
        return
    work = tmp_path / "rival"
    work.mkdir()
    with Rival(peer, files.folder, work, SystemClock()) as started:
        yield started


def queries(*, measuring: bool) -> list[str]:
    usual = ["q03", "q18"] if measuring else ["q12"]
    usual = list(TPCH_QUERIES) if measuring and os.environ.get("BENCH_FULL") == "1" else usual
    return os.environ.get("BENCH_QUERIES", ",".join(usual)).split(",")


@pytest.mark.soak
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
    rival: Rival | None,
    rounds: int,
    measuring: bool,
    place: Place,
) -> None:
    """Rows are DuckDB's; under --benchmark-enable the ratios are within the bars."""
    answers = Answers(files)
    missed: list[str] = []
    measured: dict[str, float] = {}

    def measure(query: str) -> None:
        root = place.new()
        durable = root.open(tpch, reuse="never")

        def run(at_risk: str) -> list[Any]:
            df = durable.query(tpch.sql(TPCH_QUERIES[query]), at_risk=at_risk)
            rows: list[Any] = df.collect()
            return rows

        assert answers.differing(query, run(NOTHING)) == 0
        exchanges = len(durable.report().stages)
        assert answers.differing(query, run(AT_RISK)) == 0
        cases: dict[str, Callable[[], object]] = {
            "native": lambda: tpch.sql(TPCH_QUERIES[query]).collect(),
            "stored": lambda: run(NOTHING),
            "at risk": lambda: run(AT_RISK),
        }
        cases["native"]()
        if rival is not None:
            cases[RIVAL] = lambda: rival.run(query)
            cases[RIVAL]()
        timings = interleave(cases, rounds=rounds, warmups=0)
        root.clear()
        measured[query] = timings.ratio("stored", "native")
        if not told(query, timings, exchanges, BLOCKS[kind] if measuring else None):
            missed.append(query)
        if rival is not None:
            told_beside(query, timings, rival, rival.block(BLOCKS[kind]) if measuring else None)

    def all_of_them() -> None:
        for query in queries(measuring=measuring):
            measure(query)

    benchmark.pedantic(all_of_them, rounds=1)
    if measuring:
        benchmark.extra_info["ratios"] = measured
        block, bar = BLOCKS[kind], f"{GEOMETRIC_MEAN_BAR:.2f}"
        mean = told_mean(f"tables {kind}", block, 4, bar)
        told_mean(f"tables {kind}, {AT_RISK} at risk", block, 5, "")
        if rival is not None:
            block, case = rival.block(block), f"tables {kind}, beside {rival.title}"
            beside = told_mean(case, block, 4, f"{bar} and {rival.title}'s")
            theirs = told_mean(f"{rival.title} on tables {kind}", block, 5, "")
            assert beside <= GEOMETRIC_MEAN_BAR
            assert beside < theirs
        assert not missed
        assert mean <= GEOMETRIC_MEAN_BAR


def told(query: str, timings: Timings, exchanges: int, block: str | None) -> bool:
    """Show what one query took, put it into the document, and return whether it is in its bar."""
    medians = [f"{timings.median(case):.2f}" for case in ("native", "stored", "at risk")]
    ratio = timings.ratio("stored", "native")
    good = ratio <= ONE_QUERY_BAR
    shown = f"{ratio:.2f}" if good else f"{ratio:.2f} (missed)"
    rounds = str(len(timings.seconds["native"]))
    at_risk = f"{timings.ratio('at risk', 'native'):.2f}"
    row = (query, *medians, shown, at_risk, str(exchanges), rounds)
    print("  ".join(row))
    if block is not None:
        record(block, HEAD, row)
    return good


def told_beside(query: str, timings: Timings, rival: Rival, block: str | None) -> None:
    """Show what one query took beside a service, and put it into the document."""
    medians = [f"{timings.median(case):.2f}" for case in ("native", "stored", RIVAL)]
    ratios = [f"{timings.ratio(case, 'native'):.2f}" for case in ("stored", RIVAL)]
    row = (query, *medians, *ratios, str(len(timings.seconds[RIVAL])))
    print(f"beside {rival.title}: ", "  ".join(row))
    if block is not None:
        seconds, ratio = f"{rival.title} s", f"{rival.title} / Spark"
        head = ("query", "Spark s", "stored s", seconds, "stored / Spark", ratio, "rounds")
        record(block, head, row)


def told_mean(case: str, block: str, column: int, bar: str) -> float:
    """Put the mean of the ratios in a column of a table into the document, and return it."""
    ratios = [float(cells[column].split()[0]) for cells in cells_of(block)]
    mean = statistics.geometric_mean(ratios)
    figures = (f"{mean:.2f}", bar, f"{max(ratios):.2f}")
    record("queries-mean", MEAN_HEAD, (case, str(len(ratios)), *figures))
    return mean
