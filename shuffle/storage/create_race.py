"""Let real processes race for the same keys and report what each of them saw.

Strategy: start fresh Python processes and use one key per round. Each process reports that it is
ready; once all are ready, all are told to go. The processes are started by hand, because a fresh
process of multiprocessing would run the caller's script again. The caller judges the outcome; this
module does not say who should have won.
"""

import os
import pickle
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.storage.contract import Created, Storage

_ROUND_TIMEOUT_SECONDS = 120.0
"""A racer that needs longer than this to start, or for one create, counts as hung."""

_GO = b"g"
_READY = b"r"
_FINISHED = b"f"
_FAILED = b"!"

_RACER = "from durable_shuffle.shuffle.storage.create_race import run_racer; run_racer()"

Racer = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class RaceClaim:
    """What one racer saw in one round."""

    offered: bytes
    created: bool
    existing: bytes | None
    """The bytes of `Exists` if this racer did not create the object, else None."""


def race_key(prefix: str, number: int) -> str:
    """Return the key that round `number` races for."""
    return f"{prefix}race/{number:06d}"


def race_processes(
    storage: Storage, prefix: str, *, racers: int, rounds: int, size_bytes: int = 1000
) -> list[list[RaceClaim]]:
    """Race `racers` new processes for `rounds` keys; return the claims by round, then by racer.

    Args:
        storage: pickled into each process.
        prefix: a key prefix that ends with '/' and that nobody else uses.
        size_bytes: how many bytes each racer writes, at least 100.

    Raises:
        UnavailableError: a racer died, hung or failed; the message holds its error.
    """
    with _started(racers) as processes:
        for racer, process in enumerate(processes):
            _send(process, pickle.dumps((storage, prefix, racer, rounds, size_bytes)))
        for _ in range(rounds):
            for process in processes:
                _await(process, _READY)
            for process in processes:
                _send(process, _GO)
        for process in processes:
            _await(process, _FINISHED)
        outcomes = [pickle.loads(_rest(process)) for process in processes]
    return [list(claims) for claims in zip(*outcomes, strict=True)]


def race_threads(
    storage: Storage, prefix: str, *, racers: int, rounds: int, size_bytes: int = 1000
) -> list[list[RaceClaim]]:
    """Do the same as `race_processes` with threads of this process."""
    barrier = threading.Barrier(racers)
    outcomes: list[list[RaceClaim]] = [[] for _ in range(racers)]
    failures: list[Exception] = []

    def run(racer: int) -> None:
        def wait() -> None:
            barrier.wait(_ROUND_TIMEOUT_SECONDS)

        try:
            outcomes[racer] = _race(storage, prefix, racer, rounds, size_bytes, wait)
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(racer,)) for racer in range(racers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:  # the first is the cause, the others met the broken barrier
        raise UnavailableError(f"the create race did not finish: {failures[0]}") from failures[0]
    return [list(claims) for claims in zip(*outcomes, strict=True)]


def run_racer() -> None:
    """Be one racer: the program of the processes that `race_processes` starts."""
    orders, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a driver prints must not mix with the answers
    storage, prefix, racer, rounds, size_bytes = pickle.load(orders)

    def wait() -> None:
        answers.write(_READY)
        if orders.read(1) != _GO:
            sys.exit("the race was called off")

    try:
        claims = _race(storage, prefix, racer, rounds, size_bytes, wait)
    except Exception as error:  # noqa: BLE001 - told to the caller, who raises it
        answers.write(_FAILED + f"racer {racer}: {type(error).__name__}: {error}".encode())
        return
    with answers, os.fdopen(os.dup(answers.fileno()), "wb") as report:
        report.write(_FINISHED + pickle.dumps(claims))


def _race(
    storage: Storage,
    prefix: str,
    racer: int,
    rounds: int,
    size_bytes: int,
    wait: Callable[[], None],
) -> list[RaceClaim]:
    """Race once per round, each time after `wait` returned."""
    claims = []
    for number in range(rounds):
        key = race_key(prefix, number)
        offered = f"{key} racer {racer} ".encode().ljust(size_bytes, b"%d" % (racer % 10))
        wait()
        result = storage.put_if_absent(key, offered)
        existing = None if isinstance(result, Created) else result.existing
        claims.append(RaceClaim(offered, isinstance(result, Created), existing))
    return claims


@contextmanager
def _started(racers: int) -> Iterator[list[Racer]]:
    """Start the processes; at the end, kill those that still run."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=environment,
        )
        for _ in range(racers)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _send(process: Racer, message: bytes) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(message)
    except BrokenPipeError:
        raise UnavailableError(f"the create race did not finish: {_last_words(process)}") from None


def _await(process: Racer, expected: bytes) -> None:
    """Wait for one byte. If it is not `expected`, raise what the racer reported."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], _ROUND_TIMEOUT_SECONDS)
    if not readable:
        raise UnavailableError(
            f"the create race did not finish: a create took over {_ROUND_TIMEOUT_SECONDS:.0f} s"
        )
    found = process.stdout.read(1) or b""
    if found != expected:
        words = _last_words(process, found)
        raise UnavailableError(f"the create race did not finish: {words}")


def _rest(process: Racer) -> bytes:
    assert process.stdout is not None
    return process.stdout.read()


def _last_words(process: Racer, begun: bytes = b"") -> str:
    _, _, words = (begun + _rest(process)).partition(_FAILED)
    return words.decode(errors="replace") or "a racer died without a word"
