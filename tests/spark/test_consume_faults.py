"""Consumers whose executor, driver or own code fails: no row is lost, doubled or computed again.

The consumer itself records each call in a ledger, which shows what it was given. Published rows are
compared with the expected numbers. Tests reach a moment by gates, which are files.
"""

import json
import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from processes import ancestor

from durable_shuffle.bench.cluster.local_cluster import cluster_environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROWS, EVERY = 3000, 100
DOUBLED = [[v, 2 * v] for v in range(ROWS)]


def calls_of(folder: Path, consumer: str, number: int) -> list[list[int]]:
    """Return the values that each call was given, in order."""
    text = (folder / consumer / str(number)).read_text()
    return [json.loads(line) for line in text.splitlines()]


def producer_runs(folder: Path) -> int:
    return len((folder / "producers").read_text().splitlines())


def await_worker(folder: Path, driver: Any) -> int:
    """Return the process id that the gated call recorded; both subpartitions have stopped then."""
    deadline = time.monotonic() + 300
    while not (folder / "worker").exists():
        assert driver.poll() is None, "the driver ended early"
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.02)
    return int((folder / "worker").read_text())


def given_again(calls: list[list[int]]) -> set[int]:
    """Values that were given to more than one call."""
    counts = Counter(v for call in calls for v in call)
    return {v for v, n in counts.items() if n > 1}


@pytest.mark.soak
@pytest.mark.requirement("R-F135-1")
def test_executor_killed_after_four_acknowledgements(
    tmp_path: Path, root: str, programs: Any
) -> None:
    """SIGKILL of the executor in call five: the retry begins after the fourth, no row twice."""
    folder = tmp_path / "gate"
    folder.mkdir()
    driver = programs.start(
        "consume_driver",
        *("local-cluster[2,1,1024]", root, folder),
        env=cluster_environment(tmp_path, os.environ),
    )
    worker = await_worker(folder, driver)
    before = calls_of(folder, "gated", 1)
    executor = ancestor(worker, "CoarseGrainedExecutorBackend")
    assert os.getsid(executor) == driver.pid, "only processes of that driver are killed"
    os.kill(executor, signal.SIGKILL)
    with suppress(ProcessLookupError):  # its daemon has ended it already
        os.kill(worker, signal.SIGKILL)  # otherwise it runs on as an orphan for a while
    (folder / "open").touch()
    answer = programs.answer(driver)
    assert answer["published"]["gated"] == DOUBLED
    assert [len(call) for call in before] == [EVERY] * 5
    calls = calls_of(folder, "gated", 1)
    assert calls[5] == before[4], "the call that was killed is made again, and no other before it"
    assert given_again(calls) == set(before[4])
    (consumer,) = answer["consumers"]
    assert consumer["resumed_from"] == {"1": 4 * EVERY}
    assert consumer["retries"] >= 1
    assert consumer["records_acknowledged"] == consumer["output_rows"] == ROWS
    (stage,) = answer["stages"]
    assert (stage["map_tasks_run"], stage["map_tasks_rerun"], producer_runs(folder)) == (3, 0, 3)


@pytest.fixture(scope="module")
def after_driver_kill(programs: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A driver SIGKILLed in its fifth call, and the results of the next one, with retries."""
    folder = tmp_path_factory.mktemp("consume")
    arguments = ("local[2,3]", folder / "root", folder)
    first = programs.start("consume_driver", *arguments)
    await_worker(folder, first)
    before = {number: calls_of(folder, "gated", number) for number in (0, 1)}
    programs.kill(first)
    assert first.returncode == -signal.SIGKILL
    (folder / "open").touch()
    answer = programs.run("consume_driver", *arguments)
    return {**answer, "folder": folder, "before": before}


@pytest.mark.requirement("R-F135-1")
def test_driver_killed_in_mid_consume(after_driver_kill: dict[str, Any]) -> None:
    """The next driver runs no producer and resumes inside the subpartition: 0 lost, 0 doubled."""
    folder, before = after_driver_kill["folder"], after_driver_kill["before"]
    assert after_driver_kill["published"]["gated"] == DOUBLED
    gated = after_driver_kill["consumers"][0]
    assert gated["resumed_from"] == {"0": EVERY, "1": 4 * EVERY}
    assert gated["records_delivered"] == ROWS - 5 * EVERY
    for number, acknowledged in ((0, 1), (1, 4)):
        assert [len(call) for call in before[number]] == [EVERY] * (acknowledged + 1)
        calls = calls_of(folder, "gated", number)
        assert calls[acknowledged + 1] == before[number][-1], "the call that was killed, again"
        assert given_again(calls) == set(before[number][-1]), "and no other"
    (stage,) = after_driver_kill["stages"]
    assert (stage["action"], stage["map_tasks_run"], producer_runs(folder)) == ("reused", 0, 3)


def test_error_in_process_is_retried_from_the_last_acknowledgement(
    after_driver_kill: dict[str, Any],
) -> None:
    """With retries, a third call that raises once is repeated, but not the first two."""
    folder, flaky = after_driver_kill["folder"], after_driver_kill["consumers"][1]
    assert after_driver_kill["published"]["flaky"] == DOUBLED
    for number in (0, 1):
        calls = calls_of(folder, "flaky", number)
        assert calls[3] == calls[2]
        assert given_again(calls) == set(calls[2])
    assert flaky["resumed_from"] == {"0": 2 * EVERY, "1": 2 * EVERY}
    assert (flaky["retries"], flaky["views"]) == (2, 4)


def test_state_is_restored_with_the_position(after_driver_kill: dict[str, Any]) -> None:
    """An object's sum and count survive its own failure: each row is added once."""
    sums = after_driver_kill["published"]["sums"]
    assert [sum(column) for column in zip(*sums, strict=True)] == [sum(range(ROWS)), ROWS]
    assert after_driver_kill["consumers"][2]["retries"] == 2
