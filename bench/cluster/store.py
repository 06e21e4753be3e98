"""Where the durable jobs of a benchmark store: a folder, S3, or S3 behind a network that is late.

The servers live as long as the command. Driver processes learn where to store from a file in the
work folder.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage

STORAGES = ("folder", "s3", "late")
LATE_MS = "BENCH_LATE_MS"
"""Environment variable: how late the network is, in milliseconds; 30 by default."""
_FILE = "store.json"


@dataclass(frozen=True, slots=True)
class Store:
    """What to open."""

    kind: str
    """One of STORAGES."""
    url: str
    options: Mapping[str, object] | None = None

    @property
    def told(self) -> str:
        """What it is, for people."""
        late = f"S3 on this machine, {late_seconds() * 1000:g} ms late"
        return {"folder": "a folder", "s3": "S3 on this machine", "late": late}[self.kind]

    def open(self) -> Storage:
        return open_storage(self.url, self.options)


def late_seconds() -> float:
    return float(os.environ.get(LATE_MS, "30")) / 1000


def store_folder(work: Path) -> Path:
    """Where the durable jobs keep their stages if they do so in a folder."""
    return work / "store"


def store_of(work: Path) -> Store:
    """Return where the durable jobs of a work folder store."""
    file = work / _FILE
    if not file.exists():
        return Store("folder", str(store_folder(work)))
    return Store(**json.loads(file.read_text(encoding="utf-8")))


@contextmanager
def running_store(kind: str, work: Path) -> Iterator[Store]:
    """Start what a storage needs, and note it in the work folder.

    Raises:
        InvalidInputError: there is no such storage.
    """
    if kind not in STORAGES:
        raise InvalidInputError(f"--storage is one of {', '.join(STORAGES)}, found={kind!r:.50}")
    (work / _FILE).unlink(missing_ok=True)
    if kind == "folder":
        yield store_of(work)
        return
    with object_stores(work / "s3") as (stores, _):
        store = stores[kind]
        (work / _FILE).write_text(json.dumps(asdict(store)), encoding="utf-8")
        try:
            yield store
        finally:
            (work / _FILE).unlink()


@contextmanager
def object_stores(folder: Path) -> Iterator[tuple[Mapping[str, Store], tuple[int, int]]]:
    """Start S3 and the network before it; yield both by kind, and the ids of the two processes."""
    from durable_shuffle.shuffle.testing.late_network import late_network
    from durable_shuffle.shuffle.testing.s3_server import run_s3_server

    folder.mkdir(exist_ok=True)
    with (
        run_s3_server(folder, clock=SystemClock()) as server,
        late_network(server.endpoint, late_seconds()) as network,
    ):
        late = {**server.options, "endpoint_url": network.endpoint}
        stores = {
            "s3": Store("s3", f"s3://{server.bucket}/near", server.options),
            "late": Store("late", f"s3://{server.bucket}/late", late),
        }
        yield stores, (server.process_id, network.process_id)
