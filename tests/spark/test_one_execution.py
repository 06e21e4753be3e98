"""In one run, too, all producers of a stage get rows of one execution of what lies below.

Spark runs lost map tasks of its own exchanges again while ours are under way, and a stage whose
rows turn out large is planned again. If rows may differ then, the stage starts again.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import unstable_programs
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from unstable_programs import Arrival, Program, of_step

from durable_shuffle import DurableShuffle

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", autouse=True)
def _sent_by_value() -> Iterator[None]:
    """Workers cannot import what supports the tests."""
    modules = (unstable_programs, sys.modules[__name__])
    for module in modules:
        register_pickle_by_value(module)
    yield
    for module in modules:
        unregister_pickle_by_value(module)


@pytest.fixture
def arrival(session: SparkSession, tmp_path: Path) -> Arrival:
    session.conf.set("spark.sql.shuffle.partitions", "4")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    return Arrival(tmp_path / "arrival")


class _Fault:
    """When the first producer has passed on its rows, lets the others meet something, once."""

    def __init__(self, arrival: Arrival, folder: Path) -> None:
        self._arrival, self.happened = arrival, folder / "happened"

    def __call__(self, items: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from self.passed(items, context.partitionId())
        if context.partitionId() == 0 and not self.happened.exists():
            self.happened.touch()
            self._arrival.turn(2)
            self.strike()

    def passed(self, items: Iterator[Any], producer: int) -> Iterator[Any]:
        del producer
        return items

    def strike(self) -> None:
        """Do what the fault is."""

    def durable_identity(self) -> str:
        return "the rows as they are"


class _LostFiles(_Fault):
    """The files of Spark's own exchanges are lost, as with an executor."""

    def strike(self) -> None:
        import os

        files = [
            file
            for folder in os.environ["SPARK_LOCAL_DIRS"].split(",")
            for file in Path(folder).glob("*/shuffle_*")
        ]
        assert files
        for file in files:
            file.unlink()


class _LargeRows(_Fault):
    """The last of four producers has a batch that is too large for the first plan."""

    def passed(self, items: Iterator[Any], producer: int) -> Iterator[Any]:
        import time

        batches = [
            batch.append_column("t", pa.array(["x" * (1 + 20_000 * (producer == 3))] * len(batch)))
            for batch in items
        ]
        if producer != 3:
            yield from batches
            return
        deadline = time.monotonic() + 60
        while not self.happened.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        rows = pa.Table.from_batches(batches)
        copies = [rows] * (1 + 4_000 // max(1, len(rows)))
        yield from pa.concat_tables(copies).combine_chunks().to_batches()


CALLS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "checkpoint": lambda s, df: s.checkpoint(df),
    "repartition": lambda s, df: s.repartition(df, 3, df.columns[0]),
    "stage": lambda s, df: s.stage(df, keys=df.columns[0], num_partitions=3),
}


@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize("step", ["row_number", "count"])
def test_files_of_an_exchange_are_lost_on_the_way(
    session: SparkSession, arrival: Arrival, tmp_path: Path, step: str, call: str
) -> None:
    """Spark runs their map tasks again for the producers that are left.

    Since 4.1 it compares what it computes twice, and ends a job over rows that differ.
    """
    one: Program = of_step(step, "by the last column")
    df = one.steps(arrival.rows(session))
    wanted = one.common(df)
    fault = _LostFiles(arrival, tmp_path)
    shuffle = DurableShuffle(session, str(tmp_path / "root"), job="tests")
    found = one.common(CALLS[call](shuffle, df.mapInArrow(fault, df.schema)))
    assert fault.happened.exists()
    assert found == wanted


def test_files_of_an_rdd_are_lost_on_the_way(
    session: SparkSession, arrival: Arrival, tmp_path: Path
) -> None:
    """Spark does not see that pairs differ; it goes on with what is left."""
    fault = _LostFiles(arrival, tmp_path)
    pairs = arrival.rows(session).rdd.map(lambda row: (row.k, row.p))
    firsts = pairs.groupByKey(4).mapValues(lambda found: next(iter(found)))
    moved = firsts.map(lambda pair: (pair[1], pair[0])).partitionBy(4)
    shuffle = DurableShuffle(session, str(tmp_path / "root"), job="tests", version="1")
    found = shuffle.stage_objects(moved.mapPartitions(fault), 3)
    assert sorted(key for _, key in found.collect()) == list(range(unstable_programs.KEYS))
    assert fault.happened.exists()


@pytest.mark.parametrize("step", ["row_number", "count"])
def test_rows_turn_out_large_on_the_way(
    session: SparkSession, arrival: Arrival, tmp_path: Path, step: str
) -> None:
    """The stage is planned again, and Spark runs what lies below once more."""
    one = of_step(step, "by all")
    df = one.steps(arrival.rows(session))
    wanted = sorted({row.k for row in df.collect()})
    fault = _LargeRows(arrival, tmp_path)
    rows = df.mapInArrow(fault, "k long, v long, t string")
    shuffle = DurableShuffle(session, str(tmp_path / "root"), job="tests", rows_in="python")
    out = shuffle.repartition(rows, 3, "k")
    assert sorted({row.k for row in out.select("k").collect()}) == wanted
    assert fault.happened.exists()
