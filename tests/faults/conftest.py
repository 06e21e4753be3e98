"""What the fault tests share: rows that differ per attempt, and a walk over all crash points."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest

from durable_shuffle.shuffle.memory_storage import MemoryStorage
from durable_shuffle.shuffle.producer import IdBatch
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule, SimulatedCrash
from durable_shuffle.shuffle.testing.small_stage import SeededIds

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The process dies right before or right after its call number `call`, from 0."""

    call: int
    when: Literal["before", "after"]
    verb: str
    keys: tuple[str, ...]
    storage: MemoryStorage

    def reached(self, verb: str, prefix: str, calls: list[tuple[str, tuple[str, ...]]]) -> bool:
        """Whether the first such call of the whole run took effect before the crash."""
        for i, (v, keys) in enumerate(calls):
            if v == verb and any(k.startswith(prefix) for k in keys):
                return i < self.call or (i == self.call and self.when == "after")
        raise AssertionError(f"the run makes no {verb} below {prefix}")


Prepare = Callable[[MemoryStorage], None]
Run = Callable[[FaultyStorage, MemoryStorage], object]
"""Gets the storage that will crash, and the one below, which rivals use."""
Walk = Callable[[Prepare, Run], Iterator[tuple[CrashPoint, list[tuple[str, tuple[str, ...]]]]]]


@pytest.fixture
def crash_points() -> Walk:
    """Yield every crash point of `run`, each on a storage of its own, after the crash."""

    def walk(
        prepare: Prepare, run: Run
    ) -> Iterator[tuple[CrashPoint, list[tuple[str, tuple[str, ...]]]]]:
        whole = MemoryStorage()
        prepare(whole)
        observed = FaultyStorage(whole)
        run(observed, whole)
        for i, (verb, keys) in enumerate(observed.calls):
            for when in ("before", "after"):
                storage = MemoryStorage()
                prepare(storage)
                faulty = FaultyStorage(storage, [Rule("*", "", when, i + 1, "crash")])
                with pytest.raises(SimulatedCrash):
                    run(faulty, storage)
                assert faulty.fired == 1
                assert faulty.calls == observed.calls[: i + 1]
                yield CrashPoint(i, when, verb, keys, storage), observed.calls

    return walk


@pytest.fixture
def ids() -> SeededIds:
    """Ids that are the same in every run."""
    return SeededIds(random.Random(0))


@pytest.fixture
def make_batches() -> Callable[..., list[IdBatch]]:
    """Return (salt, batches, partitions) -> batches of 20 rows, about 40 kB each."""

    def make(salt: int, batches: int = 4, partitions: int = 5) -> list[IdBatch]:
        made = []
        for b in range(batches):
            rows = [b * 20 + i for i in range(20)]
            values = [f"{salt}:{r}:".ljust(2000, "x") for r in rows]
            batch = pa.record_batch([rows, values], schema=SCHEMA)
            made.append((batch, np.array([(r * 7 + salt) % partitions for r in rows], np.uint16)))
        return made

    return make
