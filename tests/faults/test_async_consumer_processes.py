"""Asynchronous calls behind a real view, SIGKILLed: results once, retries go on where they were."""

import json
import os
import signal
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sealed_stage import SealedStage, sealed_stage, slots_of
from small_stage import SeededIds

from durable_shuffle.shuffle.storage.local import LocalStorage

SCRIPT = Path(__file__).with_name("async_consumer_process.py")
OUTPUT = pa.schema([("n", pa.int64()), ("answered", pa.bool_())])


class Runs:
    """Runs consumers one after the other and kills them where they stop."""

    def __init__(self, made: SealedStage, root: Path, calls: Path) -> None:
        self.path, self.calls = asdict(made.stage.path), calls
        command = [sys.executable, str(SCRIPT), str(root), str(calls)]
        self.server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, job: dict[str, Any], **more: Any) -> dict[str, str]:
        """Start one; return what it says first, and SIGKILL it there."""
        whole = {"path": self.path, "gate": "", "nth": 0, "more": 0, **job, **more}
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(whole) + "\n")
        self.server.stdin.flush()
        said: dict[str, Any] = json.loads(self.server.stdout.readline())
        with suppress(ProcessLookupError):  # it has finished
            os.kill(said.pop("pid"), signal.SIGKILL)
        return said

    def close(self) -> None:
        """End the server."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait()
        self.server.stdout.close()

    def called(self) -> Counter[int]:
        """How often each row was called, over all processes."""
        return Counter(int(line.split()[0]) for line in self.calls.read_text().splitlines())


@pytest.fixture
def made(tmp_path: Path, ids: SeededIds) -> SealedStage:
    """Two producers with 20 rows each for one consumer, on local files."""
    return sealed_stage(LocalStorage(tmp_path), ids, producers=2, partitions=1, rows=20)


@pytest.fixture
def runs(made: SealedStage, tmp_path: Path) -> Iterator[Runs]:
    calls = tmp_path / "calls"
    calls.touch()
    running = Runs(made, tmp_path, calls)
    yield running
    running.close()


def never(n: int) -> bool:
    return n % 7 == 3


def waits(n: int) -> bool:
    """Whether its first call is not its last."""
    return never(n) or n % 3 == 2


def acknowledged(fields: dict[str, Any]) -> dict[int, int]:
    """Next ordinal per producer of a record's one input."""
    (cursor,) = fields["inputs"]
    entries = struct.iter_unpack("<IIIIQQ", cursor["positions"])
    return {producer: ordinal for producer, _, _, _, ordinal, _ in entries}


def results(root: Path) -> list[tuple[int, bool]]:
    """What the outputs hold that won records name, in order; read without the library's codecs."""
    storage = LocalStorage(root)
    keys: dict[str, None] = {}
    for _, fields in slots_of(storage):
        keys.update(dict.fromkeys(output["key"] for output in fields.get("outputs", ())))
    found: list[tuple[int, bool]] = []
    for key in keys:
        data = storage.read(key)
        length = int.from_bytes(data[12:16], "little")
        message = pa.ipc.read_message(pa.py_buffer(data[24 : 24 + length]))
        rows = pa.ipc.read_record_batch(message, OUTPUT)
        found += zip(rows["n"].to_pylist(), rows["answered"].to_pylist(), strict=True)
    return found


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-F232-11")
@pytest.mark.requirement("R-F232-12")
@pytest.mark.requirement("R-F232-13")
@pytest.mark.parametrize(("mode", "keep"), [("ordered", "deadline"), ("unordered", "remaining")])
def test_acknowledged_cursor_and_retries_survive_kills(
    runs: Runs, made: SealedStage, tmp_path: Path, mode: str, keep: str
) -> None:
    """The position never passes a hole, and retries are counted over processes.

    Retries are due in an hour: only a restored attempt count lets this end after a few restarts.
    """
    numbers = made.of(0)
    job = {"way": "cursor", "mode": mode, "keep": keep, "rows": 12}
    hole = next(i for i, n in enumerate(numbers) if waits(n))
    assert runs.run(job, more=6) == {"at": "more"}  # 12 rows were acknowledged, 6 more called
    (fields,) = [fields for kind, fields in slots_of(LocalStorage(tmp_path)) if kind == "ACK"]
    assert acknowledged(fields) == {0: hole}
    early = [n for n, _ in results(tmp_path)]
    if mode == "ordered":
        assert early == numbers[:hole]
    else:
        assert sorted(early) == [n for n in numbers[:12] if not waits(n)]
    assert runs.run(job, gate="before", nth=1) == {"at": "before"}  # its results count for nothing
    assert [n for n, _ in results(tmp_path)] == early
    assert [runs.run(job) for _ in range(3)] == [
        {"at": "waiting"},
        {"at": "waiting"},
        {"outcome": "finished"},
    ]
    found = results(tmp_path)
    assert sorted(found) == sorted((n, not never(n)) for n in numbers)
    if mode == "ordered":
        assert [n for n, _ in found] == numbers
    called = runs.called()
    for place, n in enumerate(numbers):
        if never(n):  # three calls that count, and those of killed processes that do not
            assert called[n] == 3 + (2 if 12 <= place < 18 else 1)


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-F232-12")
@pytest.mark.requirement("R-F232-18")
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_step_in_the_consume_loop_survives_kills(
    runs: Runs, made: SealedStage, tmp_path: Path, mode: str
) -> None:
    """Killed before and after acknowledgements: each row's result is there once."""
    numbers = made.of(0)
    job = {"way": "step", "mode": mode, "keep": "deadline"}
    kills = [("before", 1), ("after", 2), ("after", 1), ("before", 2)]
    for gate, nth in kills:
        assert runs.run(job, gate=gate, nth=nth) == {"at": gate}
    assert runs.run(job) == {"outcome": "finished"}
    found = results(tmp_path)
    assert sorted(found) == sorted((n, not never(n)) for n in numbers)
    if mode == "ordered":
        assert [n for n, _ in found] == numbers
    called = runs.called()
    assert all(3 <= called[n] <= 3 + 3 * len(kills) for n in numbers if never(n))
