"""Daft on its native runner, one process: a function per producer, then `groupby.map_groups`.

A Python function of Daft gives one value per row it gets. So a producer gives one list of rows,
which `explode` takes apart.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import daft
import pyarrow as pa

from durable_shuffle.bench.peers.engines.workload import PART, WORKERS, Job, Run


@contextmanager
def engine(work: Path) -> Iterator[Run]:
    """Daft needs no start, and leaves no file."""
    del work
    os.environ.setdefault("DO_NOT_TRACK", "1")  # it reports to its makers otherwise
    daft.set_runner_native(num_threads=WORKERS)
    yield run


def run(job: Job) -> pa.Table:
    """Run a workload on the runner that is set."""
    made = daft.DataType.from_arrow_type(pa.list_(pa.struct(job.numbered_schema)))
    found = daft.DataType.from_arrow_type(pa.struct(job.answer_schema))

    def produce(partitions: daft.Series) -> pa.Array:
        lists = [_rows(job, partition) for partition in partitions.to_pylist()]
        offsets = [0]
        for rows in lists:
            offsets.append(offsets[-1] + len(rows))
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.concat_arrays(lists))

    def reduce(part: daft.Series, *columns: daft.Series) -> pa.Array:
        arrays = [column.to_arrow() for column in columns]
        rows = pa.Table.from_arrays(arrays, names=job.rows_schema.names)
        answer = job.reduce(part.to_pylist()[0], rows)
        return answer.to_struct_array().combine_chunks()

    producer = daft.func.batch(return_dtype=made, batch_size=1)(produce)
    reducer = daft.func.batch(return_dtype=found)(reduce)
    frame = daft.from_pydict({"producer": list(range(job.plan.maps))})
    rows = frame.select(producer(frame["producer"]).alias("rows")).explode("rows")
    rows = rows.select(daft.col("rows").unnest())
    columns = [rows[name] for name in job.rows_schema.names]
    answer = rows.groupby(PART).map_groups(reducer(rows[PART], *columns).alias("answer"))
    table = answer.select(daft.col("answer").unnest()).to_arrow()
    return table.cast(job.answer_schema)


def _rows(job: Job, partition: int) -> pa.StructArray:
    table = pa.Table.from_batches(list(job.produce_numbered(partition)))
    return table.to_struct_array().combine_chunks()
