"""A remote shuffle service as a peer: one that the user has running, with a client that fits.

It is not started here: a server is a distribution of its own, and no package index has one. What
the service itself counts must prove that the rows went through it; without that its figures would
be those of a client that fell back to Spark's own shuffle.
"""

import re
import socket
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from durable_shuffle.bench.peers.peer import Environment

_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Service:
    """How one service is named in the environment, and what it counts."""

    title: str
    prefix: str
    """Of the environment's variables."""
    place: str
    """What its clients connect to: "MASTER" or "COORDINATOR"."""
    counters: tuple[str, ...]
    """Counters of the bytes that the servers took in, as Prometheus names them."""

    @property
    def endpoints(self) -> str:
        return f"{self.prefix}_{self.place}"

    @property
    def jars(self) -> str:
        return f"{self.prefix}_CLIENT_JAR"

    @property
    def metrics(self) -> str:
        return f"{self.prefix}_METRICS"

    @property
    def manager(self) -> str:
        return f"{self.prefix}_SHUFFLE_MANAGER"

    def missing(self, environment: Environment) -> str | None:
        """Return why the service cannot be measured, or None if it can. Asks its servers."""
        if not all(environment.get(n) for n in (self.endpoints, self.jars, self.metrics)):
            return (
                f"start {self.title} and set {self.endpoints} to <host>:<port>, {self.jars} to the "
                f"client's jar for this Spark, and {self.metrics} to the addresses of its servers' "
                "Prometheus pages; commas between several"
            )
        for jar in _several(environment, self.jars):
            if not Path(jar).is_file():
                return f"{self.jars} names a file that is not there: {jar}"
        for endpoint in _several(environment, self.endpoints):
            if not _listens(endpoint):
                return f"{self.endpoints}: nothing listens at {endpoint}"
        if self.taken_in(environment) is None:
            return (
                f"{self.metrics}: not every page has {' or '.join(self.counters)}: without these "
                "counters nothing proves that rows went through the service"
            )
        return None

    def settings(self, environment: Environment, manager: str) -> dict[str, str]:
        """Return Spark's settings that are common to services.

        Args:
            manager: class of the shuffle manager, if the user names no other.
        """
        return {
            "spark.jars": environment[self.jars],
            "spark.shuffle.manager": environment.get(self.manager) or manager,
            "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
            "spark.shuffle.service.enabled": "false",
        }

    def version(self, environment: Environment) -> str | None:
        """Return the names of the client's jars: a service says its version nowhere else."""
        return ", ".join(Path(jar).name for jar in _several(environment, self.jars)) or None

    def taken_in(self, environment: Environment) -> int | None:
        """Return how many bytes all servers took in so far; None if one does not say."""
        total = 0.0
        for url in _several(environment, self.metrics):
            try:
                with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
                    found = counted(answer.read().decode(), self.counters)
            except (OSError, ValueError):
                return None
            if found is None:
                return None
            total += found
        return int(total)


def counted(page: str, names: Sequence[str]) -> float | None:
    """Return the sum of the named counters on a page of Prometheus; None if it has none of them."""
    found = []
    for name in names:
        pattern = rf"^(?:metrics_)?{name}(?:_Count|_total)?(?:\{{[^}}]*\}})?\s+([0-9.eE+]+)"
        found += [float(value) for value in re.findall(pattern, page, re.MULTILINE)]
    return sum(found) if found else None


def _several(environment: Environment, name: str) -> list[str]:
    return [part.strip() for part in environment.get(name, "").split(",") if part.strip()]


def _listens(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    with (
        suppress(OSError, ValueError),
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS),
    ):
        return True
    return False
