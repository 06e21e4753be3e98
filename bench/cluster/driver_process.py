"""A driver process, followed by the lines that it appends to a file.

It is the leader of a session of its own (see `faults`), so that nothing of it stays behind.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from durable_shuffle.bench.cluster.faults import end_session
from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import Clock

_PATIENCE_SECONDS = 5.0
"""Orphaned executors may notice the death of their driver; then they are ended."""


class DriverProcess:
    """One driver, from its start until all of its session has ended.

    Args:
        events: file to which the driver appends JSON lines.
        log: gets what it prints.
        asked: it reads lines from its standard input, see `ask`, and ends with it.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        events: Path,
        log: Path,
        clock: Clock,
        *,
        asked: bool = False,
    ) -> None:
        self._events, self._log, self._clock = events, log, clock
        self._read_to = 0
        self._heard = clock.monotonic()
        events.touch()
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE if asked else subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def __enter__(self) -> "DriverProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.stdin is not None:
            with suppress(BrokenPipeError, subprocess.TimeoutExpired):
                self.process.stdin.close()
                self.process.wait(_PATIENCE_SECONDS)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        patience = _PATIENCE_SECONDS if kind is None else 0.0
        end_session(self.process.pid, self._clock, patience_seconds=patience)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def ask(self, line: str) -> None:
        """Send a line to a driver that is `asked`.

        Raises:
            UnavailableError: it has ended.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise UnavailableError(f"the driver has ended; {self.tail()}") from error
        self._heard = self._clock.monotonic()

    def news(self) -> list[dict[str, Any]]:
        """Return the lines since the last call."""
        with self._events.open("rb") as file:
            file.seek(self._read_to)
            lines = file.read().rpartition(b"\n")[0]
        if lines:
            self._read_to += len(lines) + 1
            self._heard = self._clock.monotonic()
        return [json.loads(line) for line in lines.splitlines()]

    def check_alive(self, bound_seconds: float) -> None:
        """Raise UnavailableError if it said nothing for so long."""
        silent = self._clock.monotonic() - self._heard
        if silent > bound_seconds:
            raise UnavailableError(f"the driver said nothing for {silent:.0f} s; {self.tail()}")

    def tail(self) -> str:
        """Return the end of what it printed."""
        lines = self._log.read_text(errors="replace").splitlines()
        return f"the end of its log {self._log}:\n" + "\n".join(lines[-30:])
