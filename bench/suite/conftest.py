"""What the benchmarks share: data, a session, a time limit, the baseline, and small sizes when they
run as plain tests.

Measuring takes at most BENCH_MINUTES: what is marked `long_bench` runs only with BENCH_FULL=1, and
what would begin too late is skipped by name; its figures in the document keep their own day.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from local_spark import local_spark
from pyspark.sql import SparkSession

from durable_shuffle.bench.machine import machine_text
from durable_shuffle.bench.tpch.data import default_cache

sys.path.insert(0, str(Path(__file__).parent))
from places import STORAGE, Place, Places, running_places
from user_session import user_session

FULL = os.environ.get("BENCH_FULL") == "1"
MINUTES = float(os.environ.get("BENCH_MINUTES", "inf" if FULL else "17"))
"""No benchmark begins later than this; none of the usual ones takes three minutes more."""
_FIRST = ("bench_matrix.py",)


@pytest.fixture(scope="session")
def measuring(request: pytest.FixtureRequest) -> bool:
    """True under --benchmark-enable; otherwise benchmarks run once, small, to see they work."""
    return bool(request.config.getoption("benchmark_enable"))


@pytest.fixture(scope="session")
def rounds(measuring: bool) -> int:
    return int(os.environ.get("BENCH_ROUNDS", "7" if FULL else "3")) if measuring else 1


@pytest.fixture(scope="session")
def bench_spark(
    measuring: bool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    """A session as a user on two cores would have it; the tests' own when not measuring."""
    if not measuring:
        spark = local_spark()
        spark.sparkContext.setCheckpointDir(str(tmp_path_factory.mktemp("checkpoints")))
        yield spark
        return
    spark = user_session(tmp_path_factory.mktemp("spark-local"))
    spark.sparkContext.setCheckpointDir(str(tmp_path_factory.mktemp("checkpoints")))
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    """A folder and two object stores, which serve one module."""
    with running_places(tmp_path_factory.mktemp("places")) as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Where BENCH_STORAGE says: "folder" if it says nothing, "s3" or "late"."""
    if STORAGE == "folder":
        yield Place(str(tmp_path_factory.mktemp("stages")), None)
        return
    with running_places(tmp_path_factory.mktemp("places")) as running:
        yield running.by_name[STORAGE]


@pytest.fixture(scope="session")
def cache(measuring: bool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where generated data stays: BENCH_CACHE, else the user's cache; of plain tests, nowhere."""
    given = os.environ.get("BENCH_CACHE")
    if given:
        return Path(given)
    return default_cache() if measuring else tmp_path_factory.mktemp("data")


def pytest_configure(config: pytest.Config) -> None:
    """Start the clock of the time limit."""
    config.stash[_STARTED] = time.monotonic()


_STARTED = pytest.StashKey[float]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group by file, leave the long ones out; when measuring, put the commands first."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            group = item.path.stem.removeprefix("bench_")
            item.add_marker(pytest.mark.benchmark(group=group))
    measuring = config.getoption("benchmark_enable")
    if measuring:
        items.sort(key=lambda item: item.path.name not in _FIRST)
    if not FULL or not measuring:
        long = [item for item in items if _is_long(item, whole=measuring)]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


def _is_long(item: pytest.Item, *, whole: bool) -> bool:
    """Return whether a test is long; if not `whole`, only a case whose shorter sister runs."""
    case = getattr(item, "callspec", None)
    marks = item.iter_markers() if whole else getattr(case, "marks", ())
    return any(mark.name == "long_bench" for mark in marks)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what would begin after the time limit."""
    minutes = (time.monotonic() - item.config.stash[_STARTED]) / 60
    if item.config.getoption("benchmark_enable") and minutes > MINUTES:
        pytest.skip(f"BENCH_MINUTES={MINUTES:g} are over: its figures keep their own day")


def pytest_benchmark_generate_machine_info(config: pytest.Config) -> dict[str, Any]:
    """What is saved says what it was measured on, and no host's name."""
    del config
    return {"text": machine_text()}


def pytest_benchmark_generate_commit_info(config: pytest.Config) -> dict[str, Any]:
    """Nothing: a baseline is committed along with what it belongs to."""
    del config
    return {}


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Put each ratio beside the saved baseline's: unlike seconds, ratios compare over machines."""
    session = getattr(config, "_benchmarksession", None)
    if session is None or not config.getoption("benchmark_enable"):
        return
    before = {}
    for _, saved in session.storage.load():
        for one in saved["benchmarks"]:
            before.update(_ratios(one["fullname"], one["extra_info"]))
    for bench in session.benchmarks:
        for name, ratio in _ratios(bench.fullname, bench.extra_info).items():
            beside = f"baseline {before[name]:.2f}" if name in before else "no baseline"
            terminalreporter.write_line(f"ratio {ratio:.2f}, {beside}: {name}")


def _ratios(name: str, found: dict[str, Any]) -> dict[str, float]:
    """Return what a benchmark left as its ratio, or as its ratios by name."""
    ratios = {f"{name} / {base}": ratio for base, ratio in found.get("ratios", {}).items()}
    return ratios | ({name: found["ratio"]} if "ratio" in found else {})
