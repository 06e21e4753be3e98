"""The storages that benchmarks compare: a folder, S3, and S3 behind a network that is late."""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.cluster.store import late_seconds, object_stores
from durable_shuffle.bench.machine import cpu_seconds_of
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.storage.contract import ObjectInfo
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.retrying import RetryingStorage

STORAGE = os.environ.get("BENCH_STORAGE", "folder")
"""Where the benchmarks store that store in one place only."""
LATE_SECONDS = late_seconds()


@dataclass(frozen=True, slots=True)
class Place:
    """Where stages are stored."""

    url: str
    options: Mapping[str, object] | None

    def new(self) -> "Place":
        """Return a part of it that nobody used."""
        return Place(f"{self.url}/{RandomIds().new_id()}", self.options)

    def storage(self) -> RetryingStorage:
        return open_storage(self.url, self.options)

    def listed(self, prefix: str = "") -> list[ObjectInfo]:
        """Return what is stored here."""
        return list(self.storage().list(prefix))

    def clear(self) -> None:
        """Delete all that is stored here."""
        self.storage().delete([info.key for info in self.listed()])

    def open(self, spark: SparkSession, **more: Any) -> DurableShuffle:
        options = None if self.options is None else dict(self.options)
        more = {"job": "bench", **more}
        return DurableShuffle(spark, self.url, storage_options=options, **more)


@dataclass(frozen=True, slots=True)
class Places:
    """The storages side by side, and the processes whose CPU is not ours."""

    by_name: Mapping[str, Place]
    servers: tuple[int, ...]

    def cpu_seconds(self) -> float:
        """Return the CPU time of this process and its children so far, without the servers."""
        return cpu_seconds_of(os.getpid(), without=self.servers)

    def served_seconds(self) -> float:
        """Return the CPU time of the server and the network so far."""
        return sum(map(cpu_seconds_of, self.servers))


@contextmanager
def running_places(folder: Path) -> Iterator[Places]:
    """Start the servers; they end with the block."""
    with object_stores(folder / "s3") as (stores, servers):
        by_name = {name: Place(store.url, store.options) for name, store in stores.items()}
        yield Places({"folder": Place(str(folder / "stages"), None), **by_name}, servers)
    shutil.rmtree(folder)
