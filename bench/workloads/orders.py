"""Orders that a task finds in its folder: to die once, or to be slower than its twin.

Strategy: an order is a file. Who dies by it first takes it, by an exclusive create, so that it
happens once over all attempts and processes; that file is the proof that it happened.
"""

import os
import signal
from pathlib import Path

from durable_shuffle.bench.workloads.task_log import read_lines
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import SystemClock

DIE, TWIN, TAKEN = "order-die", "order-twin", "order-taken"
STRAGGLER = 0
"""The producer that gets a twin."""
_BOUND_SECONDS = 300.0


def take(folder: Path, who: str) -> bool:
    """Return True for the first caller, of all processes."""
    try:
        handle = os.open(folder / TAKEN, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w") as file:
        file.write(who)
    return True


def taken(folder: Path) -> str | None:
    """Return who took the order, or None."""
    path = folder / TAKEN
    return path.read_text(encoding="utf-8") if path.exists() else None


def die_if_ordered(folder: Path, who: str) -> None:
    """SIGKILL the own process if there is such an order and nobody took it yet."""
    if (folder / DIE).exists() and take(folder, who):
        os.kill(os.getpid(), signal.SIGKILL)


def wait_for_twin(folder: Path, partition: int) -> None:
    """Let the straggler's first attempt wait until another attempt of it has ended.

    Raises:
        UnavailableError: no twin came.
    """
    if partition != STRAGGLER or not (folder / TWIN).exists():
        return
    if not take(folder, f"partition {partition}"):
        return
    clock = SystemClock()
    deadline = clock.monotonic() + _BOUND_SECONDS
    while not any(
        x["event"] == "end" and x["phase"] == "map" and x["partition"] == partition
        for x in read_lines(folder)
    ):
        if clock.monotonic() > deadline:
            raise UnavailableError("no speculative twin was started")
        clock.sleep(0.02)
