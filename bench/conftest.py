"""What the benchmarks share: data, a session, and small sizes when they run as plain tests."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from local_spark import local_spark
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def measuring(request: pytest.FixtureRequest) -> bool:
    """True under --benchmark-enable; otherwise benchmarks run once, small, to see they work."""
    return bool(request.config.getoption("benchmark_enable"))


@pytest.fixture(scope="session")
def rounds(measuring: bool) -> int:
    return int(os.environ.get("BENCH_ROUNDS", "7")) if measuring else 1


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
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    SparkSession.builder.getOrCreate().stop()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.shuffle.partitions", "32")
        .config("spark.local.dir", str(tmp_path_factory.mktemp("spark-local")))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.setCheckpointDir(str(tmp_path_factory.mktemp("checkpoints")))
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where generated data stays: BENCH_CACHE, else gone with the run."""
    given = os.environ.get("BENCH_CACHE")
    return Path(given) if given else tmp_path_factory.mktemp("data")
