"""Log producers and followers as real processes on local files: stopped, killed, raced, followed.

What must come out is the source, rows 0, 1, 2, …; the moment of a fault is a gate right before the
record of one slot is created.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_log import SCHEMA, read_log_rows, rows_for
from small_stage import SeededIds, new_stage, records_below

from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.local import LocalStorage

PARTITIONS, ROWS, STEP = 2, 30, 5


class Worker:
    """A process that produces or follows, one job after the other."""

    def __init__(self, root: Path) -> None:
        script = Path(__file__).with_name("log_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def heard(self) -> dict[str, Any]:
        return json.loads(self.process.stdout.readline())

    def produce(self, stage: StageHandle, *, gate: int | None = None, end: str = "FINITE") -> None:
        self._start(stage, do="produce", rows=ROWS, step=STEP, gate=gate, end=end)

    def follow(self, stage: StageHandle, subpartition: int) -> None:
        self._start(stage, do="follow", subpartition=subpartition)

    def _start(self, stage: StageHandle, **job: object) -> None:
        names = ("job", "name", "fingerprint", "incarnation")
        path = {name: getattr(stage.path, name) for name in names}
        self.tell(json.dumps({"path": path, **job}))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def stage(tmp_path: Path, ids: SeededIds) -> StageHandle:
    """A stage of one log producer on local files."""
    storage = LocalStorage(tmp_path)
    return new_stage(storage, ids, SCHEMA, partitions=PARTITIONS, writing="log")


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Callable[[int], list[Worker]]]:
    """Start processes; they are killed at the end."""
    started: list[Worker] = []

    def start(count: int) -> list[Worker]:
        new = [Worker(tmp_path) for _ in range(count)]
        started.extend(new)
        assert [w.heard() for w in new] == [{"at": "start"}] * count
        return new

    yield start
    for worker in started:
        worker.close()


def log_of(stage: StageHandle) -> list[tuple[str, int]]:
    """(kind, epoch) of the records in the producer's log."""
    prefix = stage.path.producer_log_prefix(0)
    return [
        (kind, fields["after"]["epoch"]) for _, kind, fields in records_below(stage.storage, prefix)
    ]


def assert_source_once(stage: StageHandle, rows: int = ROWS) -> None:
    for k in range(PARTITIONS):
        events, _ = read_log_rows(stage, k)
        assert [n for _, _, n in events if isinstance(n, int)] == rows_for(k, 0, rows, PARTITIONS)


def segments(stage: StageHandle) -> int:
    return len(list(stage.storage.list(stage.path.segments_prefix)))


@pytest.mark.requirement("R-F135-7")
@pytest.mark.requirement("R-F135-27")
def test_producer_stopped_before_an_append_wakes_up_fenced(
    stage: StageHandle, spawn: Callable[[int], list[Worker]]
) -> None:
    """SIGSTOP at the gate of slot 3; a successor finishes; SIGCONT: it can append nothing."""
    zombie, successor = spawn(2)
    zombie.produce(stage, gate=3)
    assert zombie.heard() == {"at": "open", "epoch": 1, "source": ""}
    assert zombie.heard() == {"at": "append"}
    os.kill(zombie.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, zombie.process.pid, os.WSTOPPED | os.WNOWAIT)
    assert_source_once(stage, 2 * STEP)
    assert segments(stage) == 3  # the third is written and not appended
    successor.produce(stage)
    assert successor.heard() == {"at": "open", "epoch": 2, "source": "10"}
    assert successor.heard() == {"outcome": "done"}
    before = log_of(stage)
    zombie.tell("go")
    os.kill(zombie.process.pid, signal.SIGCONT)
    told = zombie.heard()
    assert told["outcome"] == "FencedError"
    assert "slot 3" in told["message"]
    appends = [("APPEND", 1)] * 2, [("APPEND", 2)] * 4
    assert (
        log_of(stage) == before == [("OPEN", 1), *appends[0], ("OPEN", 2), *appends[1], ("END", 2)]
    )
    assert segments(stage) == 6  # the zombie took its own back
    assert_source_once(stage)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gate", [0, 4, 7], ids=["open", "append", "end"])
def test_producer_killed_at_a_record_is_continued(
    stage: StageHandle, spawn: Callable[[int], list[Worker]], gate: int
) -> None:
    """SIGKILL right before OPEN, an APPEND or END: the next one goes on at the source position."""
    killed, successor = spawn(2)
    killed.produce(stage, gate=gate)
    if gate:
        assert killed.heard()["at"] == "open"
    assert killed.heard() == {"at": "append"}
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    assert len(log_of(stage)) == gate
    successor.produce(stage)
    source = max(0, gate - 1) * STEP
    assert successor.heard()["source"] == (str(source) if source else "")
    assert successor.heard() == {"outcome": "done"}
    assert_source_once(stage)


@pytest.mark.parametrize(
    "rounds", [3, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]
)
def test_producers_that_race_leave_one_history(
    tmp_path: Path, ids: SeededIds, spawn: Callable[[int], list[Worker]], rounds: int
) -> None:
    """Three processes copy the same source at once: fenced ones stop, every row counts once."""
    workers = spawn(3)
    for _ in range(rounds):
        stage = new_stage(LocalStorage(tmp_path), ids, SCHEMA, partitions=PARTITIONS, writing="log")
        for worker in workers:
            worker.produce(stage)
        outcomes = []
        for worker in workers:
            told = worker.heard()
            outcomes.append((told if "outcome" in told else worker.heard())["outcome"])
        assert outcomes.count("done") == 1
        assert set(outcomes) <= {"done", "FencedError", "InvalidInputError"}
        assert_source_once(stage)
        kinds = [kind for kind, _ in log_of(stage)]
        assert kinds[-1] == "END"
        assert kinds.count("END") == 1


@pytest.mark.requirement("R-F46-12")
def test_follower_process_sees_appends_in_order_and_ends(
    stage: StageHandle, spawn: Callable[[int], list[Worker]]
) -> None:
    """It starts before the producer, is told each append before the next is made, and ends."""
    producer, follower = spawn(2)
    follower.follow(stage, 1)
    got: list[int] = []

    def follow_two_appends() -> None:
        for _ in range(2):
            records, marker = follower.heard(), follower.heard()
            assert records["first"] == len(got)
            got.extend(records["events"])
            assert (marker["rows"], marker["slot"]) == (0, records["slot"])
            assert got == rows_for(1, 0, marker["events"][0], PARTITIONS)

    for gate, source in ((3, ""), (6, "10")):  # slots: OPEN, two APPENDs, and then the gate
        producer.produce(stage, gate=gate)
        assert producer.heard()["source"] == source
        assert producer.heard() == {"at": "append"}
        follow_two_appends()
        producer.close()
        (producer,) = spawn(1)
    producer.produce(stage, end="SUSPEND")
    assert producer.heard()["source"] == "20"
    assert producer.heard() == {"outcome": "done"}
    follow_two_appends()
    assert got == rows_for(1, 0, ROWS, PARTITIONS)
    producer.produce(stage, end="FINITE")
    assert producer.heard() == {"at": "open", "epoch": 4, "source": "30"}
    assert producer.heard() == {"outcome": "done"}
    assert follower.heard() == {"outcome": "end", "modes": ["FINITE"]}
