"""Dask's peer-to-peer shuffle, on two worker processes.

Rows are data frames with Arrow columns. A worker that is killed is replaced by its nanny, and the
shuffle begins again: that is how this shuffle recovers. It shuffles by the key itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
from distributed import Client, LocalCluster

from durable_shuffle.bench.peers.engines.workload import WORKERS, Job, Run


@contextmanager
def engine(work: Path) -> Iterator[Run]:
    """Start a cluster."""
    dask.config.set({"dataframe.convert-string": False, "temporary-directory": str(work / "dask")})
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None,
            host="127.0.0.1", memory_limit=0,
        ) as cluster,
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):  # fmt: skip

        def run(job: Job) -> pa.Table:
            client.wait_for_workers(WORKERS)
            return _run(job)

        yield run


def _run(job: Job) -> pa.Table:
    parts = dd.from_map(  # type: ignore[no-untyped-call]
        _made, list(range(job.plan.maps)), job=job, meta=_frame(job.rows_schema.empty_table())
    )
    shuffled = parts.shuffle(on=job.plan.key, npartitions=job.plan.reduces, shuffle_method="p2p")
    empty = _frame(job.answer_schema.empty_table())
    found: pd.DataFrame = shuffled.map_partitions(_reduced, job, meta=empty).compute()
    return _table(found)


def _made(partition: int, job: Job) -> pd.DataFrame:
    return _frame(pa.Table.from_batches(list(job.produce(partition))))


def _reduced(
    frame: pd.DataFrame, job: Job, partition_info: dict[str, int] | None = None
) -> pd.DataFrame:
    if partition_info is None:
        return _frame(job.answer_schema.empty_table())
    return _frame(job.reduce(partition_info["number"], _table(frame)))


def _frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def _table(frame: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
