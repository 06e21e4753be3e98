"""Polars, one process: a Python source per producer, then `group_by(...).map_groups`.

Polars does not call the functions of groups in parallel.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pyarrow as pa
from polars.io.plugins import register_io_source

from durable_shuffle.bench.peers.engines.workload import PART, Job, Run


@contextmanager
def engine(work: Path) -> Iterator[Run]:
    """Polars needs no start, and leaves no file."""
    del work
    yield _run


def _run(job: Job) -> pa.Table:
    schema = pl.Schema(job.numbered_schema)
    parts = [
        register_io_source(_source(job, partition), schema=schema)
        for partition in range(job.plan.maps)
    ]

    def reduce(group: pl.DataFrame) -> pl.DataFrame:
        return _frame(job.reduce_group(group.to_arrow()))

    grouped = pl.concat(parts).group_by(PART)
    answer = grouped.map_groups(reduce, schema=pl.Schema(job.answer_schema)).collect()
    return answer.to_arrow().cast(job.answer_schema)


def _source(job: Job, partition: int) -> Callable[..., Iterator[pl.DataFrame]]:
    def source(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, size: int | None
    ) -> Iterator[pl.DataFrame]:
        del rows, size  # hints; nothing here is limited
        for batch in job.produce_numbered(partition):
            frame = _frame(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            yield frame if columns is None else frame.select(columns)

    return source


def _frame(rows: pa.Table | pa.RecordBatch) -> pl.DataFrame:
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)  # a table gives one
    return frame
