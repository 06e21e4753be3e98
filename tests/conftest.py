"""What all tests share: the report header, the seed, Hypothesis profiles, the S3 server."""

import importlib.metadata
import os
import platform
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from mark_collector import MarkCollector
from quick_jvms import quick_jvms
from quick_workers import quick_workers
from sampled import Sampled

from durable_shuffle.bench.cluster.local_cluster import linked_spark_home
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.testing.s3_server import S3Server, run_s3_server

collect_ignore = ["example_plugin"]
"""A distribution of its own: test_example_plugin.py installs it and runs its tests."""

_SEED = pytest.StashKey[int]()

_CI_SEED = 2674141284
"""With CI set, each run of one commit does the same; other runs draw a seed."""
KEPT_SEEDS: dict[str, tuple[int, ...]] = {}
"""Name of a test -> seeds that it failed with once; it runs with each of them, in every run."""
_FIRST = (
    "test_demo.py",
    "test_docs_blocks.py",
    "test_differential.py",
    "test_connect.py",
    "test_pipeline_on_spark.py",
    "test_consume_faults.py",
    "test_sessionize.py",
    "test_query.py",
    "test_drivers.py",
    "test_queries_recognised.py",
    "test_resume_spark.py",
    "test_query_drivers.py",
    "test_stream_kills.py",
    "test_bench_recovery.py",
    "test_rows_counted.py",
    "test_stage_memory.py",
)
"""The longest files: begun last, they would leave other processes without work. Those that start
clusters stand apart."""

settings.register_profile("fast", max_examples=15, deadline=None, print_blob=True)
settings.register_profile(
    "ci",
    max_examples=100,
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),  # one commit, one result
)
settings.register_profile(
    "soak",
    max_examples=5000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that keeps a run from passing because Spark tests silently went away."""
    parser.addoption(
        "--min-spark-tests",
        type=int,
        default=0,
        help="fail the run if fewer tests marked spark passed",
    )


class _SparkTests:
    """Counts the passed Spark tests and fails the run if there are too few."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.passed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and "spark" in report.keywords:
            self.passed += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == 0 and self.passed < self.wanted:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        verdict = "too few" if self.passed < self.wanted else "enough"
        terminalreporter.write_line(
            f"spark tests passed: {self.passed}, needed: {self.wanted} ({verdict})"
        )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed, the Hypothesis profile and what JVMs are told once per run."""
    given = os.environ.get("DURABLE_SHUFFLE_SEED")
    if given is None:
        os.environ["DURABLE_SHUFFLE_SEED_DRAWN"] = "1"
    drawn = _CI_SEED if os.environ.get("CI") else secrets.randbits(32)
    config.stash[_SEED] = drawn if given is None else int(given)
    # the processes that share the run's tests share its seed
    os.environ["DURABLE_SHUFFLE_SEED"] = str(config.stash[_SEED])
    os.environ["JAVA_TOOL_OPTIONS"] = quick_jvms()
    if not hasattr(config, "workerinput"):
        os.environ["SPARK_HOME"] = str(linked_spark_home(Path(sys.prefix) / "spark-home"))
        os.environ["PYSPARK_SUBMIT_ARGS"] = quick_workers()
    config.pluginmanager.register(MarkCollector(), "requirement marks")
    config.pluginmanager.register(Sampled(), "samples")
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
    wanted = config.getoption("--min-spark-tests")
    if wanted and not hasattr(config, "workerinput"):  # workers of a shared run do not judge it
        config.pluginmanager.register(_SparkTests(wanted))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; a run that is shared out by file keeps that order."""
    items.sort(key=lambda item: _FIRST.index(item.path.name) if item.path.name in _FIRST else 99)


def pytest_report_header(config: pytest.Config) -> str:
    """Say what ran, and how to run the same again."""
    versions = [f"python {platform.python_version()}"]
    for name in ("pyarrow", "fsspec", "s3fs", "pyspark"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{name} absent")
    return f"{', '.join(versions)}; DURABLE_SHUFFLE_SEED={config.stash[_SEED]}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the seeds that it failed with once, too."""
    kept = KEPT_SEEDS.get(metafunc.function.__name__, ())
    if kept and "seed" in metafunc.fixturenames:
        seeds = [metafunc.config.stash[_SEED], *kept]
        metafunc.parametrize("seed", seeds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of the run, for `random.Random(seed)`; the header prints it."""
    return int(getattr(request, "param", request.config.stash[_SEED]))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server with one bucket; its log stays in pytest's temporary folder."""
    with run_s3_server(tmp_path_factory.mktemp("s3"), clock=SystemClock()) as server:
        yield server
