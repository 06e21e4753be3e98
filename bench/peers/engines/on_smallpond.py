"""smallpond on two worker processes of Ray: `map_batches`, then `repartition(by=...)`.

Its tasks write Parquet files. A second run with the same job id and time finds the tasks that have
ended; so it gets both, from the job's name.
"""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import smallpond
import smallpond.dataframe

from durable_shuffle.bench.peers.engines.on_ray import ray_cluster
from durable_shuffle.bench.peers.engines.workload import PART, Job, Run

_ALL_ROWS = 1 << 30
_TIME = datetime(2026, 1, 1, tzinfo=UTC)
"""Part of the name of a job's folder."""


@contextmanager
def engine(work: Path) -> Iterator[Run]:
    """Start Ray; each run is a session of its own, which ends before Ray does."""
    with ray_cluster(work) as address, ExitStack() as ends:

        def run(job: Job) -> pa.Table:
            session = _session(job, work / "smallpond", address)
            ends.callback(session.shutdown)
            return _run(job, session)

        yield run


def _session(job: Job, folder: Path, address: str) -> smallpond.dataframe.Session:
    folder.mkdir(exist_ok=True)
    return smallpond.init(
        job_id=uuid.uuid5(uuid.NAMESPACE_URL, job.name).hex,
        job_time=_TIME,
        data_root=str(folder),
        ray_address=address,
    )


def _run(job: Job, session: smallpond.dataframe.Session) -> pa.Table:
    def produce(table: pa.Table) -> pa.Table:
        made = [
            batch
            for partition in table.column("producer").to_pylist()
            for batch in job.produce_numbered(partition)
        ]
        return pa.Table.from_batches(made)

    def reduce(table: pa.Table) -> pa.Table:
        return job.reduce_group(table)

    producers = session.from_items([{"producer": p} for p in range(job.plan.maps)])
    made = producers.repartition(job.plan.maps, by_rows=True).map_batches(produce)
    parts = made.repartition(job.plan.reduces, by=PART)
    return (
        parts.map_batches(reduce, batch_size=_ALL_ROWS).to_arrow().select(job.answer_schema.names)
    )
