"""What fault tests share: ids, rows, a run that dies at every call, producers in processes."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small_stage import SeededIds

from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule, SimulatedCrash
from durable_shuffle.shuffle.write.segments import IdBatch

PARTITIONS = 5
ROWS, CHARS = 20, 2000
"""Rows of a batch, characters of a row: two batches fill one segment of the smallest settings."""

Calls = list[tuple[str, tuple[str, ...]]]


@dataclass(frozen=True)
class CrashPoint:
    """A storage as a process left it that died before or after its nth call."""

    storage: MemoryStorage
    nth: int
    """Which call, from 1."""
    when: str

    def reached(self, verb: str, prefix: str, calls: Calls) -> bool:
        """Return True if a call of this verb, on a key with this prefix, took effect.

        Args:
            calls: all calls of the run that did not die.
        """
        done = calls[: self.nth if self.when == "after" else self.nth - 1]
        return any(v == verb and any(k.startswith(prefix) for k in keys) for v, keys in done)


class Attempt:
    """A process that runs producer attempts, one after the other."""

    def __init__(self, root: Path) -> None:
        script = Path(__file__).with_name("producer_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def heard(self) -> dict[str, str]:
        return json.loads(self.process.stdout.readline())

    def start(self, stage: StageHandle, attempt: str, salt: int, **more: object) -> None:
        """Run until the gate: before the COMMIT, or `gate="segment"` while it writes its first."""
        path = stage.path
        job = {
            "path": {f: getattr(path, f) for f in ("job", "name", "fingerprint", "incarnation")},
            "producer": 0,
            "producers": 1,
            "attempt": attempt,
            "salt": salt,
            "gate": "commit",
            **more,
        }
        self.tell(json.dumps(job))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def ids(seed: int) -> SeededIds:
    """Ids that repeat with the seed of the run."""
    return SeededIds(random.Random(seed))


@pytest.fixture
def make_batches() -> Callable[..., list[IdBatch]]:
    """Return what makes the rows of an attempt; another salt gives other rows elsewhere."""

    def make(salt: int, batches: int = 4) -> list[IdBatch]:
        made = []
        for b in range(batches):
            rows = range(b * ROWS, (b + 1) * ROWS)
            values = [f"{salt}:{r}:".ljust(CHARS, "x") for r in rows]
            to = np.array([(r * 7 + salt) % PARTITIONS for r in rows], np.uint16)
            made.append((pa.record_batch([list(rows), values], names=["k", "v"]), to))
        return made

    return make


class InOrder:
    """Runs calls that may be side by side one after the other, so that they have one order."""

    def __init__(self, threads: int) -> None:
        del threads

    def __enter__(self) -> "InOrder":
        return self

    def __exit__(self, *error: object) -> None: ...

    def shutdown(self, **how: bool) -> None: ...

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call())
        return done

    def map(self, call: Callable[[Any], Any], arguments: Iterable[Any]) -> Iterator[Any]:
        return map(call, arguments)


@pytest.fixture
def crash_points(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., Iterator[tuple[CrashPoint, Calls]]]:
    """Return what lets a run die before and after each of its storage calls, on a fresh storage.

    `prepare(storage)` fills the storage; `run(storage, below)` acts on the one that crashes and may
    reach the one below, which does not. Yields (the point, all calls of a run that does not die).
    """
    monkeypatch.setattr("durable_shuffle.shuffle.base.side_by_side.ThreadPoolExecutor", InOrder)

    def points(
        prepare: Callable[[MemoryStorage], object], run: Callable[[Storage, Storage], object]
    ) -> Iterator[tuple[CrashPoint, Calls]]:
        below = MemoryStorage()
        prepare(below)
        clean = FaultyStorage(below)
        run(clean, below)
        for nth in range(1, len(clean.calls) + 1):
            for when in ("before", "after"):
                storage = MemoryStorage()
                prepare(storage)
                faulty = FaultyStorage(storage, [Rule("*", "", when, nth, "crash")])
                with pytest.raises(SimulatedCrash):
                    run(faulty, storage)
                assert faulty.fired == 1
                assert faulty.calls == clean.calls[:nth]  # the same calls up to the crash
                yield CrashPoint(storage, nth, when), clean.calls

    return points


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[[int], list[Attempt]]]:
    """Start processes; they are killed at the end."""
    started: list[Attempt] = []

    def start(count: int) -> list[Attempt]:
        new = [Attempt(tmp_path) for _ in range(count)]
        started.extend(new)
        assert [a.heard() for a in new] == [{"at": "start"}] * count
        return new

    yield start
    for attempt in started:
        attempt.close()
