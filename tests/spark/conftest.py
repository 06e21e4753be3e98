"""The one Spark session of a test run, and what tests of stages share."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores; tests must leave its configuration as they found it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2]")
            .appName("durable-shuffle tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.memory", "2g")
            .config("spark.sql.shuffle.partitions", "8")
            .config("spark.sql.session.timeZone", "UTC")
            .getOrCreate()
        )
        yield session
        session.stop()


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of its own on the same context: what a test sets stays with that test."""
    return spark.newSession()


@pytest.fixture
def root(tmp_path: Path) -> str:
    """An empty folder for stored stages."""
    return str(tmp_path / "root")


class RunCounter:
    """A map function that writes down which partitions ran, independent of any report.

    One line per run in a file per partition: appends of a line are atomic, so that concurrent runs
    are all counted.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder

    @property
    def function(self) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """For `mapInArrow`; the rows pass unchanged."""
        folder = str(self._folder)

        def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            with open(f"{folder}/{context.partitionId()}", "a") as file:  # noqa: PTH123 - in a worker
                file.write("run\n")
            yield from batches

        return count

    def runs(self) -> dict[int, int]:
        """Return partition -> how often it ran."""
        return {int(p.name): len(p.read_text().splitlines()) for p in self._folder.iterdir()}


@pytest.fixture
def counter(tmp_path: Path) -> RunCounter:
    """Counts producer runs in files."""
    return RunCounter(tmp_path / "runs")
