"""Spark with a shuffle service, as one more case beside cases of this process.

One JVM has one shuffle manager, so the service has a driver of its own (`rival_process.py`). It
waits for its turn and uses no core meanwhile.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from durable_shuffle.bench.cluster.driver_process import DriverProcess
from durable_shuffle.bench.peers.peer import Peer
from durable_shuffle.bench.peers.systems import PEERS
from durable_shuffle.serialization.errors import InvalidInputError, UnavailableError
from durable_shuffle.shuffle.base.clock import Clock

PROGRAM = Path(__file__).with_name("rival_process.py")
_POLL_SECONDS = 0.02
_SILENCE_BOUND_SECONDS = 300.0


def asked_peer(environment: Mapping[str, str]) -> Peer | None:
    """Return the service that BENCH_AGAINST names, or None if it names none.

    Raises:
        InvalidInputError: it is no service, or it cannot be measured on this machine; the message
            says why.
    """
    name = environment.get("BENCH_AGAINST")
    if not name:
        return None
    services = [peer.name for peer in PEERS.values() if peer.taken_in is not None]
    if name not in services:
        raise InvalidInputError(f"BENCH_AGAINST={name}: expected one of {', '.join(services)}")
    why = PEERS[name].absent(environment)
    if why is not None:
        raise InvalidInputError(f"BENCH_AGAINST={name}: {why}")
    return PEERS[name]


class Rival:
    """The driver of one service, until the context ends.

    Args:
        data: folder of the TPC-H tables.
        work: existing folder of the driver's own.
    """

    def __init__(self, peer: Peer, data: Path, work: Path, clock: Clock) -> None:
        self.title = peer.name.capitalize()
        self._peer, self._clock = peer, clock
        settings = json.dumps(peer.settings(os.environ, work))
        events = work / "events.jsonl"
        command = [sys.executable, str(PROGRAM), str(work), str(events), str(data), settings]
        log = work / "driver.log"
        self._driver = DriverProcess(command, os.environ, events, log, clock, asked=True)

    def __enter__(self) -> "Rival":
        try:
            self._next("ready")
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._driver.__exit__(kind, error, trace)

    def block(self, block: str) -> str:
        """Return the block of the document for the figures beside those of another block."""
        return f"{block}-{self._peer.name}"

    def run(self, query: str) -> float:
        """Answer a query, and return the seconds that its driver measured.

        Raises:
            UnavailableError: the driver failed, its rows are not DuckDB's, or nothing went through
                the service: there are no figures then.
        """
        before = self._taken_in()
        self._driver.ask(query)
        done = self._next("done")
        if done["differing"]:
            raise UnavailableError(f"{self.title}: {query} has {done['differing']} wrong rows")
        rise = self._taken_in() - before
        if rise <= 0:
            raise UnavailableError(
                f"{self.title}: the service took in {rise} bytes in {query}: the rows went another "
                "way, and its figures are refused"
            )
        return float(done["seconds"])

    def _taken_in(self) -> int:
        found = self._peer.taken_in(os.environ) if self._peer.taken_in is not None else None
        if found is None:
            raise UnavailableError(f"{self.title}: the service does not say what it took in")
        return found

    def _next(self, event: str) -> dict[str, Any]:
        """Wait for the driver's next line, which must be of this kind."""
        while True:
            running = self._driver.running  # before the news, so that none are missed
            for news in self._driver.news():
                if news["event"] == event:
                    return news
                raise UnavailableError(f"{self.title}: {news}; {self._driver.tail()}")
            if not running:
                raise UnavailableError(f"{self.title}: the driver ended; {self._driver.tail()}")
            self._driver.check_alive(_SILENCE_BOUND_SECONDS)
            self._clock.sleep(_POLL_SECONDS)
