"""In one run, too, all producers of a stage get rows of one execution of what lies below.

Spark runs lost map tasks of its own exchanges again while ours are under way, and a stage whose
rows turn out large is planned again. If rows may differ then, the stage starts again.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
import pyspark
import pytest
import unstable_programs
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import SparkSession
from unstable_programs import Arrival, of_step

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.stages.producer_runs import spark_saw_two

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("master", "cases"),
    [("local[2]", 7), pytest.param("local-cluster[2,1,1024]", 4, marks=pytest.mark.soak)],
)
def test_files_of_an_exchange_are_lost_on_the_way(
    programs: Any, tmp_path: Path, master: str, cases: int
) -> None:
    """Spark runs their map tasks again for the producers that are left. Since 4.1 it compares what
    it computes twice, and ends a job over rows that differ; of pairs it sees nothing. On a cluster
    they are lost with a killed executor."""
    support = Path(unstable_programs.__file__).parent
    found = programs.run("lost_files_driver", tmp_path, support, master)
    assert len(found) == cases
    assert not any(found.values()), found


def test_all_words_of_spark_for_it_are_known() -> None:
    """Those in its own scheduler, whose texts begin with what was computed twice."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-core_*.jar")
    texts = set[str]()
    with ZipFile(jar) as classes:
        for name in classes.namelist():
            if name.startswith("org/apache/spark/scheduler/DAGScheduler"):
                found = re.findall(rb"(?:stage|Task) with indeterminate [ -~]+", classes.read(name))
                texts |= {text.decode() for text in found}
    assert texts
    assert [text for text in texts if not spark_saw_two(text)] == []


@pytest.fixture
def _sent_by_value() -> Iterator[None]:
    """Workers cannot import what supports the tests."""
    modules = (unstable_programs, sys.modules[__name__])
    for module in modules:
        register_pickle_by_value(module)
    yield
    for module in modules:
        unregister_pickle_by_value(module)


class _LargeRows:
    """The last of four producers has a batch that is too large for the first plan. By then the
    first one is through, and what is computed anew arrives in another order."""

    def __init__(self, arrival: Arrival, happened: Path) -> None:
        self._arrival, self.happened = arrival, happened

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        large = context.partitionId() == 3
        rows = [
            batch.append_column("t", pa.array(["x" * (1 + 20_000 * large)] * len(batch)))
            for batch in batches
        ]
        if not large:
            yield from rows
            if context.partitionId() == 0:
                self._arrival.turn(2)
                self.happened.touch()
            return
        deadline = time.monotonic() + 60
        while not self.happened.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        copies = [pa.Table.from_batches(rows)]
        copies *= 1 + 4_000 // len(copies[0])
        yield from pa.concat_tables(copies).combine_chunks().to_batches()

    def durable_identity(self) -> str:
        return "the rows as they are"


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("_sent_by_value")
@pytest.mark.parametrize("step", ["row_number", "count"])
def test_rows_turn_out_large_on_the_way(session: SparkSession, tmp_path: Path, step: str) -> None:
    """The stage is planned again, and Spark runs what lies below once more."""
    session.conf.set("spark.sql.shuffle.partitions", "4")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    arrival = Arrival(tmp_path / "arrival")
    df = of_step(step, "by all").steps(arrival.rows(session))
    wanted = sorted({row.k for row in df.collect()})
    fault = _LargeRows(arrival, tmp_path / "happened")
    rows = df.mapInArrow(fault, "k long, v long, t string")
    shuffle = DurableShuffle(session, str(tmp_path / "root"), job="tests", rows_in="python")
    out = shuffle.repartition(rows, 3, "k")
    assert sorted({row.k for row in out.select("k").collect()}) == wanted
    assert fault.happened.exists()
