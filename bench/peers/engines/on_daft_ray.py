"""Daft on two CPUs of a Ray node: as on its native runner, with tasks in Ray's workers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import daft

from durable_shuffle.bench.peers.engines.on_daft import run
from durable_shuffle.bench.peers.engines.on_ray import ray_cluster
from durable_shuffle.bench.peers.engines.workload import Run


@contextmanager
def engine(work: Path) -> Iterator[Run]:
    """Start Ray."""
    with ray_cluster(work) as address:
        daft.set_runner_ray(address)
        yield run
