"""A pipeline of real processes, run in one terminal and steered by commands of another."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from operated import NAME
from pipelines import until

from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.serialization.errors import InvalidInputError, NotFoundError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.storage.local import LocalStorage

WAIT = 600.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
COMMAND = [sys.executable, "-m", "durable_shuffle.jobs.cli", "pipeline"]


class Terminals:
    """The folder of a pipeline, the terminal that runs it, and others."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder, str(folder / "data")
        self.coordinator: subprocess.Popen[str] | None = None

    def arguments(self, tags: dict[str, int], **more: Any) -> str:
        pids = str(self.folder / "pids")
        return json.dumps({"folder": str(self.folder), "tags": tags, "pids": pids, **more})

    def run(self, tags: dict[str, int]) -> None:
        """Start a coordinator."""
        command = [*COMMAND, "run", "operated:make", "--arguments", self.arguments(tags), "--json"]
        self.coordinator = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
        )

    def do(self, command: str, *arguments: str) -> dict[str, Any]:
        """Run a command in a terminal of its own; return its document."""
        call = [*COMMAND, command, self.url, NAME, *arguments, "--json"]
        done = subprocess.run(
            call, env=ENVIRONMENT, capture_output=True, text=True, timeout=WAIT, check=False
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    @property
    def client(self) -> PipelineClient:
        """A terminal without a command line."""
        return PipelineClient(NAME, self.url, wait_seconds=WAIT)

    def rows(self, consumer: str) -> list[tuple[int, int]]:
        """(number, tag) of what is published, read without any of our code."""
        files = sorted((self.folder / consumer).glob("part-*.json"))
        lines = [json.loads(x) for f in files for x in f.read_text().splitlines()]
        return [(line["n"], line["tag"]) for line in lines]

    def more(self, consumer: str, tag: int | None = None) -> None:
        before = len(self.rows(consumer))

        def there() -> bool:
            assert self.coordinator is not None
            assert self.coordinator.poll() is None, "the coordinator has ended"
            rows = self.rows(consumer)
            return len(rows) > before and (tag is None or any(t == tag for _, t in rows))

        until(there, f"more rows of {consumer}")

    def kill_a_task(self, tag: int) -> None:
        """SIGKILL to a process of a consumer, and new rows behind that."""
        pids = [int(path.name.split("-")[1]) for path in (self.folder / "pids").glob(f"{tag}-*")]
        alive = [pid for pid in pids if _lives(pid)]
        assert alive
        os.kill(alive[0], signal.SIGKILL)
        until(lambda: not _lives(alive[0]), "its end")

    def end(self) -> dict[str, Any]:
        """What the coordinator came to."""
        assert self.coordinator is not None
        out, _ = self.coordinator.communicate(timeout=WAIT)
        found: dict[str, Any] = json.loads(out)
        return found


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    found = Terminals(tmp_path)
    yield found
    if found.coordinator is not None and found.coordinator.poll() is None:
        found.coordinator.kill()
        found.coordinator.wait()


@pytest.mark.soak
@pytest.mark.requirement("R-MZ-11")
def test_updated_suspended_and_resumed_while_tasks_are_killed(terminals: Terminals) -> None:
    """From other terminals alone; every event is there once in the end, by all consumers."""
    terminals.run({"copy": 1, "goes": 5})
    until(lambda: terminals.rows("copy"), "rows")
    terminals.kill_a_task(1)
    terminals.more("copy")
    arguments = terminals.arguments({"copy": 2, "comes": 7})
    found = terminals.do("update", "operated:make", "--arguments", arguments, "--as", "second")
    assert found["text"] == "keeps numbers; replaces copy; starts comes; ends goes"
    terminals.more("copy", tag=2)
    terminals.more("comes")
    terminals.kill_a_task(2)
    terminals.do("suspend")
    until(lambda: terminals.client.status().phase == "suspended", "the pause")
    with pytest.raises(InvalidInputError, match="comes too late"):
        terminals.client.drain()
    terminals.do("resume")
    terminals.more("copy")
    terminals.kill_a_task(7)
    terminals.more("comes")
    status = terminals.client.status()
    assert (status.version, status.dropped) == ("second", ("goes",))
    assert {part.part for part in status.parts} == {"numbers", "copy", "comes"}
    assert any("ended without a word" in one.cause for one in status.restarts)
    terminals.client.drain()
    assert terminals.end()["phase"] == "finished"
    for consumer in ("copy", "comes"):
        rows = terminals.rows(consumer)
        assert Counter(n for n, _ in rows) == Counter(range(len(rows)))
    assert len(terminals.rows("copy")) == len(terminals.rows("comes"))
    done = terminals.client.status()
    assert {part.part: (part.final, part.lag_records) for part in done.parts} == {
        "numbers": (True, None),
        "copy": (True, 0),
        "comes": (True, 0),
    }


@pytest.mark.soak
def test_a_coordinator_that_is_killed_and_started_again(terminals: Terminals) -> None:
    """The next one goes on with what was asked for, not with what it was described by at first."""
    terminals.run({"copy": 1})
    until(lambda: terminals.rows("copy"), "rows")
    terminals.client.update("operated:make", json.loads(terminals.arguments({"copy": 2})))
    terminals.more("copy", tag=2)
    assert terminals.coordinator is not None
    terminals.coordinator.kill()
    terminals.coordinator.wait()
    led = terminals.client.status().generation
    terminals.run({"copy": 1})
    until(lambda: terminals.client.status().generation > led, "the next one leads")
    terminals.more("copy")
    reached = max(n for n, tag in terminals.rows("copy") if tag == 1)
    terminals.client.drain()
    assert terminals.end()["phase"] == "finished"
    rows = terminals.rows("copy")
    assert Counter(n for n, _ in rows) == Counter(range(len(rows)))
    assert max(n for n, tag in rows if tag == 1) == reached, "nothing more by the first step"


def test_sigterm_suspends(terminals: Terminals) -> None:
    """Also if it comes to all processes at once, as a service manager sends it, and twice."""
    terminals.run({"copy": 1})
    until(lambda: terminals.rows("copy"), "rows")
    assert terminals.coordinator is not None
    tasks = [int(path.name.split("-")[1]) for path in (terminals.folder / "pids").glob("1-*")]
    for pid in (*tasks, terminals.coordinator.pid, terminals.coordinator.pid):
        os.kill(pid, signal.SIGTERM)
    assert terminals.end()["phase"] == "suspended"
    assert terminals.coordinator.returncode == 0
    assert terminals.client.status().phase == "suspended"
    assert terminals.client.status().restarts == ()
    assert set(Counter(n for n, _ in terminals.rows("copy")).values()) == {1}
    until(lambda: not any(_lives(pid) for pid in tasks), "the end of the tasks")


@pytest.mark.requirement("R-ARR-6")
def test_a_coordinator_that_is_fenced_ends_with_an_exit_code_of_its_own(
    terminals: Terminals,
) -> None:
    """A service manager that starts it again would fence its successor in turn."""
    terminals.run({"copy": 1})
    until(lambda: terminals.rows("copy"), "rows")
    JobLog.claim(LocalStorage(terminals.folder / "data"), NAME, RandomIds().new_id())
    found = terminals.end()
    assert found["phase"] == "failed"
    assert found["cause"].startswith("fenced: another coordinator")
    assert terminals.coordinator is not None
    assert terminals.coordinator.returncode == 3


def test_an_unknown_pipeline(terminals: Terminals) -> None:
    """Nothing is written for it."""
    with pytest.raises(NotFoundError, match="no pipeline 'operated' was ever run"):
        _ = terminals.client
    assert not (terminals.folder / "data" / NAME).exists()
