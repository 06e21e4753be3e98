"""Ray Data on two worker processes: `map_batches`, then `groupby(...).map_groups`.

What maps give is in the object store of the node, not in the worker that gave it. The cluster is
started by the driver and ends with it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import ray

from durable_shuffle.bench.peers.engines.workload import PART, WORKERS, Job, Run

_ADDRESS = "127.0.0.2"
"""On loopback; Ray takes 127.0.0.1 for the address by which others reach this host. Some of its
servers listen on all addresses all the same; they ask for the token that Ray makes."""

_OBJECT_STORE_BYTES = 2 << 30
_LONGEST_FOLDER = 40
"""Characters: below it Ray makes sockets, whose paths the kernel limits to 107."""


@contextmanager
def engine(work: Path) -> Iterator[Run]:
    """Start a cluster of one node."""
    with ray_cluster(work):
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield _run


@contextmanager
def ray_cluster(work: Path) -> Iterator[str]:
    """Start Ray on this host, and yield its address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it reports to its makers otherwise
    folder = str(work / "ray")
    context = ray.init(
        address="local",
        num_cpus=WORKERS,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        _node_ip_address=_ADDRESS,
        _temp_dir=folder if len(folder) <= _LONGEST_FOLDER else None,
    )
    try:
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()


def _run(job: Job) -> pa.Table:
    def produce(batch: pa.Table) -> Iterator[pa.Table]:
        for partition in batch.column("id").to_pylist():
            for made in job.produce_numbered(partition):
                yield pa.Table.from_batches([made])

    def reduce(group: pa.Table) -> pa.Table:
        return job.reduce_group(group)

    maps = job.plan.maps
    made = ray.data.range(maps, override_num_blocks=maps).map_batches(
        produce, batch_size=1, batch_format="pyarrow"
    )
    groups = made.groupby(PART, num_partitions=job.plan.reduces)
    answer = groups.map_groups(reduce, batch_format="pyarrow")
    tables = [t for t in ray.get(answer.to_arrow_refs()) if t.num_rows]
    return pa.concat_tables([t.cast(job.answer_schema) for t in tables])
