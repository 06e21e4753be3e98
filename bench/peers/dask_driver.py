"""The same workloads through Dask's peer-to-peer shuffle, on two worker processes.

    python -m durable_shuffle.bench.peers.dask_driver WORK EVENTS STEPS_JSON

Says what `spark_driver` says. Rows are data frames with Arrow columns; map and reduce are the same
functions. A worker that is killed is replaced by its nanny, and the shuffle begins again: that is
how this shuffle recovers.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import dask
import dask.dataframe as dd
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster

from durable_shuffle.bench.cluster.event_file import EventFile
from durable_shuffle.bench.workloads.step import Step, result_file
from durable_shuffle.bench.workloads.task_log import TaskLog, counted_in, prepare
from durable_shuffle.bench.workloads.workloads import WORKLOADS, batches_of, reduced, slowed
from durable_shuffle.shuffle.base.clock import SystemClock

WORKERS = 2
_NO_WAITING = 1 << 40
"""Tasks that Dask is said to have heard of: it has no count to wait for."""


def make_part(partition: int, name: str, folder: str, seed: int, scale: float) -> pd.DataFrame:
    """Return a producer's rows."""
    workload = WORKLOADS[name]
    if scale < 0:  # asked for the columns alone
        return _frame(pa.Table.from_batches(list(batches_of(name, 0, 0, 1))).slice(0, 0))
    log = TaskLog.begin(folder, "map", partition, host=os.getpid())
    made = []
    rows = workload.rows_of(scale, partition)
    for batch in slowed(batches_of(name, seed, partition, rows), workload.map_batch_seconds):
        log.gave(batch)
        made.append(batch)
    log.end()
    return _frame(pa.Table.from_batches(made))


def reduce_part(
    frame: pd.DataFrame, name: str, folder: str, partition_info: dict[str, int] | None = None
) -> pd.DataFrame:
    """Return the answer of one partition."""
    if partition_info is None:
        return _frame(_answer(name, []))
    log = TaskLog.begin(folder, "reduce", partition_info["number"], host=os.getpid())
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
    batches = iter(table.to_batches(max_chunksize=10_000))
    slow = WORKLOADS[name].reduce_batch_seconds
    found = list(reduced(name, slowed(counted_in(batches, log), slow)))
    log.end()
    return _frame(_answer(name, found))


def _answer(name: str, batches: list[pa.RecordBatch]) -> pa.Table:
    """Return a table; without rows, one of the right columns."""
    if batches:
        return pa.Table.from_batches(batches)
    sample = list(reduced(name, batches_of(name, 0, 0, 1)))
    return pa.Table.from_batches(sample).slice(0, 0)


def _frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def run(step: Step, work: Path) -> pa.Table:
    """Run a step and return its rows."""
    workload, folder = WORKLOADS[step.workload], str(step.folder(work))
    parts = dd.from_map(  # type: ignore[no-untyped-call]
        make_part,
        list(range(workload.maps)),
        name=step.workload,
        folder=folder,
        seed=step.seed,
        scale=step.scale,
        meta=make_part(0, step.workload, folder, 0, -1.0),
    )
    shuffled = parts.shuffle(on=workload.key, npartitions=workload.reduces, shuffle_method="p2p")
    answer = shuffled.map_partitions(
        reduce_part,
        step.workload,
        folder,
        meta=reduce_part(pd.DataFrame(), step.workload, folder),
    )
    found: pd.DataFrame = answer.compute()
    return pa.Table.from_pandas(found, preserve_index=False).replace_schema_metadata()


def main(arguments: list[str]) -> None:
    """Work off the steps; see the module's docstring."""
    work, events = Path(arguments[0]), EventFile(Path(arguments[1]))
    steps = [Step(**values) for values in json.loads(arguments[2])]
    clock = SystemClock()
    dask.config.set({"dataframe.convert-string": False, "temporary-directory": str(work / "dask")})
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=WORKERS, threads_per_worker=1, processes=True, dashboard_address=None,
            host="127.0.0.1", memory_limit=0,
        ) as cluster,
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):  # fmt: skip
        client.wait_for_workers(WORKERS)
        events.emit("ready")
        for step in steps:
            client.wait_for_workers(WORKERS)
            warm = Step(**{**step.to_dict(), "round": -1 - step.number, "scale": 0.0})
            prepare(warm.folder(work), 1, None)
            run(warm, work)
            prepare(step.folder(work), step.run, step.gate)
            events.emit("run", step=step.number, at=clock.wall())
            events.emit("progress", step=step.number, tasks=_NO_WAITING)
            start = clock.monotonic()
            rows = run(step, work)
            seconds = clock.monotonic() - start
            pq.write_table(rows, result_file(work, step))
            values: dict[str, Any] = {"total": None, "detected": None}
            events.emit("done", step=step.number, at=clock.wall(), seconds=seconds, **values)


if __name__ == "__main__":
    main(sys.argv[1:])
