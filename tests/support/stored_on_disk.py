"""A stored stage on disk, and changes of its files behind the storage's back.

Files are found by walking the disk, never by asking the library.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stored_job import stored_stage

from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.verify.job import verify_stage
from durable_shuffle.shuffle.verify.report import VerifyReport

JOB = "job"


@dataclass(frozen=True)
class Stored:
    """One stage below `root`."""

    root: Path
    storage: LocalStorage
    log: JobLog
    stage: StageHandle

    @classmethod
    def store(cls, root: Path, compression: str = "lz4", **how: Any) -> "Stored":
        """Store producers with several segments, one with none, and a partition without rows."""
        settings = Settings(writer_memory_bytes=65_536, frame_bytes=2048, compression=compression)
        storage = LocalStorage(root)
        log = JobLog.claim(storage, JOB, RandomIds().new_id())
        options = {"rows": (7000, 0, 1500, 4000), "settings": settings, **how}
        return cls(root, storage, log, stored_stage(log, storage, job=JOB, **options))

    def verify(self) -> VerifyReport:
        """Verify the job log and the stage."""
        return verify_stage(self.storage, self.stage.path, Settings())

    def named(self) -> set[str]:
        """Return the keys that a verification names."""
        return {finding.key for finding in self.verify().findings}

    def files(self, *parts: str) -> list[Path]:
        """Return the files whose key holds all `parts`, sorted."""
        found = sorted(p for p in self.root.rglob("*") if p.is_file())
        return [p for p in found if all(part in p.as_posix() for part in parts)]

    def key(self, path: Path) -> str:
        """Return the storage key of a file."""
        return path.relative_to(self.root).as_posix()


@contextmanager
def changed(path: Path, change: Callable[[bytearray], object]) -> Iterator[None]:
    """Change a file for the time of a block; `change` alters the bytes in place."""
    before = path.read_bytes()
    after = bytearray(before)
    change(after)
    if bytes(after) == before:
        raise AssertionError(f"nothing was changed: {path}")
    path.write_bytes(after)
    try:
        yield
    finally:
        path.write_bytes(before)


def flip(at: int, bit: int) -> Callable[[bytearray], None]:
    """Return a change of one bit: `bit` 0 to 7 of the byte at offset `at`."""

    def change(data: bytearray) -> None:
        data[at] ^= 1 << bit

    return change
