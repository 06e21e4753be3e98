"""Let real processes race for the same keys and report what each of them saw.

Strategy: fresh processes, one barrier per round, one key per round; every process offers its own
bytes. Whoever calls judges the outcome: this file holds no opinion on who should have won.
"""

import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Protocol

from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.storage import Created, Storage

_ROUND_TIMEOUT_SECONDS = 60.0
"""A racer that takes longer for one create has hung or died; the others stop waiting for it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What one racer saw in one round."""

    offered: bytes
    created: bool
    existing: bytes | None
    """What the storage said was there, if it was not created."""


class _Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...

    def abort(self) -> None: ...


def race_key(prefix: str, number: int) -> str:
    """Return the key that round `number` races for."""
    return f"{prefix}race/{number:06d}"


def race_processes(
    storage: Storage, prefix: str, *, racers: int, rounds: int, size_bytes: int = 1000
) -> list[list[Claim]]:
    """Race `racers` new processes for `rounds` keys; return the claims by round, then by racer.

    Args:
        storage: is pickled into each process.
        prefix: a key prefix with its final '/', which nobody else uses.
        size_bytes: what each racer offers, at least 100.

    Raises:
        UnavailableError: a racer died or failed; the message holds its error.
    """
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(racers)
    pipes = [context.Pipe(duplex=False) for _ in range(racers)]
    processes = [
        context.Process(
            target=_run_racer,
            args=(storage, prefix, racer, rounds, size_bytes, barrier, sending),
            daemon=True,
        )
        for racer, (_, sending) in enumerate(pipes)
    ]
    try:
        for process in processes:
            process.start()
        for _, sending in pipes:
            sending.close()  # else a dead racer's pipe would never end
        return _by_round([_receive(receiving) for receiving, _ in pipes])
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()
        for receiving, _ in pipes:
            receiving.close()


def race_threads(
    storage: Storage, prefix: str, *, racers: int, rounds: int, size_bytes: int = 1000
) -> list[list[Claim]]:
    """As `race_processes`, with threads of this process."""
    barrier = threading.Barrier(racers)
    outcomes: list[list[Claim] | str] = ["did not report"] * racers

    def run(racer: int) -> None:
        outcomes[racer] = _race(storage, prefix, racer, rounds, size_bytes, barrier)

    threads = [threading.Thread(target=run, args=(racer,)) for racer in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _by_round(outcomes)


def _run_racer(
    storage: Storage,
    prefix: str,
    racer: int,
    rounds: int,
    size_bytes: int,
    barrier: Barrier,
    sending: Connection,
) -> None:
    sending.send(_race(storage, prefix, racer, rounds, size_bytes, barrier))
    sending.close()


def _race(
    storage: Storage, prefix: str, racer: int, rounds: int, size_bytes: int, barrier: _Barrier
) -> list[Claim] | str:
    """Return the claims of one racer, or its error as text."""
    claims = []
    try:
        for number in range(rounds):
            key = race_key(prefix, number)
            offered = f"{key} racer {racer} ".encode().ljust(size_bytes, b"%d" % (racer % 10))
            barrier.wait(_ROUND_TIMEOUT_SECONDS)
            result = storage.put_if_absent(key, offered)
            created = isinstance(result, Created)
            existing = None if isinstance(result, Created) else result.existing
            claims.append(Claim(offered, created, existing))
    except Exception as error:  # noqa: BLE001 - told to the caller, who raises it
        barrier.abort()
        return f"racer {racer}: {type(error).__name__}: {error}"
    return claims


def _receive(receiving: Connection) -> list[Claim] | str:
    receive: Callable[[], list[Claim] | str] = receiving.recv
    try:
        return receive()
    except EOFError:
        return "a racer died without a word"


def _by_round(outcomes: list[list[Claim] | str]) -> list[list[Claim]]:
    failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
    # A racer that broke off breaks the barrier of the others: the first cause is not theirs.
    causes = [failure for failure in failures if "BrokenBarrierError" not in failure] or failures
    if causes:
        raise UnavailableError(f"the create race did not finish: {'; '.join(causes)}")
    claims = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    return [list(one_round) for one_round in zip(*claims, strict=True)]
