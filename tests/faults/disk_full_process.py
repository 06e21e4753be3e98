"""A producer that meets a full disk, in a process of its own; prints what it saw as JSON.

Run as a script: `disk_full_process.py ROOT PLACE KIND`. PLACE says where the space ends: in a
"segment" or at the "commit". KIND is "real" if ROOT is on a small file system of its own, which is
then filled with ballast; "simulated" has the storage say so.
"""

import errno
import json
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import numpy as np
import pyarrow as pa
from small_stage import (
    SeededIds,
    model_of,
    new_stage,
    partition_of,
    read_rows,
    seal,
    write,
)

from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.stages import delete_orphans
from durable_shuffle.shuffle.storage.contract import Created, Exists, Storage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule
from durable_shuffle.shuffle.write.segments import IdBatch

SETTINGS = Settings(writer_memory_bytes=300_000, compression="none")
PARTITIONS = 4


def fill(root: Path, leave_bytes: int) -> None:
    """Leave about this much space, rounded down to whole pages."""
    free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
    with (root / "ballast").open("ab", buffering=0) as file:
        try:
            file.write(bytes(max(0, free - leave_bytes)))
            while leave_bytes == 0:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


class FullAtCommit(LocalStorage):
    """Somebody else takes the last byte right before the first COMMIT."""

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        root = Path(self.description.removeprefix("file:"))
        if "/producers/" in key and not (root / "ballast").exists():
            fill(root, 0)
        return super().put_if_absent(key, data)


def input_batches() -> list[IdBatch]:
    """Four batches of about 300 kB: four segments."""
    rng = random.Random(1)
    made = []
    for b in range(4):
        keys = list(range(b * 100, b * 100 + 100))
        batch = pa.record_batch([keys, [rng.randbytes(3000) for _ in keys]], names=["k", "v"])
        made.append((batch, np.array([k % PARTITIONS for k in keys], np.uint16)))
    return made


def used(root: Path) -> int:
    """Bytes of all files, hidden ones too."""
    return sum(p.stat().st_size for p in root.rglob("*") if p.is_file() and p.name != "ballast")


def free_bytes(root: Path) -> int:
    """What the file system says is left."""
    return os.statvfs(root).f_bavail * os.statvfs(root).f_frsize


def main(root: Path, place: str, kind: str) -> dict[str, object]:
    """Fail for want of space, look, make space, succeed."""
    ids = SeededIds(random.Random(2))
    batches = input_batches()
    plain = LocalStorage(root)
    stage = new_stage(plain, ids, batches[0][0].schema, partitions=PARTITIONS, compression="none")
    failing: Storage
    if kind == "simulated":
        if place == "segment":
            rule = Rule("put", nth=3, fault="disk_full")
        else:
            rule = Rule("put_if_absent", nth="every", fault="disk_full")
        failing = FaultyStorage(plain, [rule])
    else:
        failing = plain if place == "segment" else FullAtCommit(root)
        if place == "segment":
            fill(root, 800_000)
    used_before, free_before = used(root), free_bytes(root)
    seen: dict[str, object] = {"kind": kind, "used_before": used_before}
    try:
        handle = StageHandle(failing, stage.path, stage.describe)
        write(handle, 0, batches, ids.new_id(), settings=SETTINGS)
    except DurableShuffleError as error:
        seen.update(error=type(error).__name__, message=str(error))
    seen["used_after"] = used(root)
    seen["free_lost"] = free_before - free_bytes(root)
    seen["records"] = [i.key for i in plain.list(stage.path.producers_prefix)]
    (root / "ballast").unlink(missing_ok=True)
    result = write(stage, 0, batches, ids.new_id(), settings=SETTINGS)
    sealed = seal(stage, 1, ids.new_id())
    model = model_of([batches])
    seen["won"] = result.won
    delete_orphans(stage, ids, cause="the disk was full")
    seen["segments"] = len(list(plain.list(stage.path.segments_prefix)))
    seen["right"] = [
        read_rows(stage, sealed, k) == partition_of(model, k, 1) for k in range(PARTITIONS)
    ]
    return seen


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])))
