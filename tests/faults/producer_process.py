"""A producer attempt in a process of its own, for tests that race, stop and starve attempts.

Run as a script: `producer_process.py ROOT`. Each line on stdin is a JSON job; each reply is one
JSON line: {"at": "commit"} at the gate right before the first COMMIT is sent, or {"at": "segment"}
in the middle of writing the first segment, after which any line on stdin opens it, then
{"outcome": ...}. The rows depend on the salt alone, see `row_of`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.write.producer import run_producer
from durable_shuffle.shuffle.write.segments import IdBatch

BATCHES, ROWS, CHARS = 4, 20, 2000


def say(**fields: object) -> None:
    """Tell the parent one thing."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class GatedStorage(LocalStorage):
    """Stops once until the parent opens the gate.

    At "commit" right before the first create in a producer's log, at "segment" when the bytes of
    the first segment are written and have no name yet, at "" nowhere.
    """

    gate = ""

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        if "/producers/" in key:
            self._stop("commit")
        return super().put_if_absent(key, data)

    def _link(self, hidden: Path, path: Path) -> bool:
        if path.suffix == ".seg":
            self._stop("segment")
        return super()._link(hidden, path)

    def _stop(self, at: str) -> None:
        if self.gate == at:
            say(at=at)
            sys.stdin.readline()
            self.gate = ""


def batches(salt: int, partitions: int) -> Iterator[IdBatch]:
    """Yield the rows of an attempt; another salt gives other rows in other partitions."""
    for b in range(BATCHES):
        rows = range(b * ROWS, (b + 1) * ROWS)
        values = [f"{salt}:{r}:".ljust(CHARS, "x") for r in rows]
        ids = np.array([(r * 7 + salt) % partitions for r in rows], np.uint16)
        yield pa.record_batch([list(rows), values], names=["k", "v"]), ids


def run(root: str, job: dict[str, object]) -> None:
    """Run one attempt and tell its outcome."""
    storage = GatedStorage(root)
    storage.gate = str(job["gate"])
    stage = open_stage(storage, StagePath(**job["path"]))  # type: ignore[arg-type]
    try:
        result = run_producer(
            StageHandle(storage, stage.path, stage.describe),
            int(str(job["producer"])),
            batches(int(str(job["salt"])), stage.describe.partitions),
            attempt=str(job["attempt"]),
            producers=int(str(job["producers"])),
            settings=Settings(writer_memory_bytes=1 << 16, frame_bytes=1024),
        )
    except DurableShuffleError as error:
        say(outcome=type(error).__name__, message=str(error))
    else:
        say(outcome="won" if result.won else "lost", commit=result.committed.commit.record_id)


if __name__ == "__main__":
    say(at="start")
    while line := sys.stdin.readline():
        run(sys.argv[1], json.loads(line))
