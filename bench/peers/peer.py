"""One system that is measured: all that the benchmark knows of it, in one value. Pure."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from durable_shuffle.bench.cluster.faults import EXECUTOR
from durable_shuffle.bench.cluster.standalone import Host
from durable_shuffle.bench.peers.installed import below, version
from durable_shuffle.bench.workloads.faults import FAULTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from durable_shuffle.bench.workloads.workloads import Workload

Environment = Mapping[str, str]
HandOver = Callable[["DataFrame", "Workload", Path], "DataFrame"]
"""Takes mapped rows, the workload and a folder of the run, which a second run finds again. Returns
rows by partition."""

SPARK_DRIVER = "durable_shuffle.bench.peers.spark_driver"
ON_STORAGE = dict.fromkeys(
    ("F5", "F6", "F7", "F9"),
    "injected in this project's storage layer, which this peer does not use",
)
"""Refusals of every peer but this project."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One system, or one way to use it. Peers of one `session` have equal drivers and settings."""

    name: str
    title: str
    """What it is, for people, without a full stop."""
    colour: str
    """Of its bars: readable on white and on near-black alike."""
    driver: str = SPARK_DRIVER
    """Module that works off steps; `engine_driver` is for all that have nothing of Spark."""
    session: str = "plain"
    """Kind of driver process: steps of one kind may share one."""
    worker: str | None = EXECUTOR
    """Part of the command line of the processes that run tasks: F1 and F2 kill one of them. None:
    one that has a task under way, by the tasks' own lines."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """Name of a fault or workload that makes no sense with it -> why, a sentence."""
    packages: tuple[str, ...] = ("pyspark",)
    """Distributions that it needs: what is missing is said, and versions are shown."""
    install: str = "pip install 'durable-shuffle[bench]'"
    """How to get them."""
    too_new: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Package -> first version of it with which this peer does not start."""
    python_variable: str | None = None
    """Environment variable with the path of another Python, for packages that cannot be installed
    beside those of other peers. It needs numpy and pyarrow besides."""
    missing: Callable[[Environment], str | None] = lambda _: None
    """What else is missing on this machine, a sentence that says what to do; None: nothing."""
    version: Callable[[Environment], str | None] = lambda _: None
    """What is shown beside the versions of `packages`."""
    settings: Callable[[Environment, Path], dict[str, str]] = lambda _, __: {}
    """Spark's settings, asked for once per session; the folder lives as long as the benchmark."""
    hosts: tuple[Host, ...] = ()
    """Hosts of a standalone cluster; without any, Spark's `local-cluster` is used."""
    hand_over: HandOver | None = None
    """How rows get from map to reduce tasks on Spark. None: the driver has a way of its own."""
    stale: Callable[[Path], list[Path]] | None = None
    """Files in the hand-over's folder that do not count; None if nothing is kept there."""
    taken_in: Callable[[Environment], int | None] | None = None
    """Bytes that a service says it took in so far, None if it does not say; must rise with each
    run, or the run's figures are refused. None: there is no service."""

    @property
    def on_spark(self) -> bool:
        return self.driver == SPARK_DRIVER

    def python(self, environment: Environment) -> str:
        """Return the Python that runs its driver."""
        named = environment.get(self.python_variable) if self.python_variable else None
        return named or sys.executable

    def absent(self, environment: Environment) -> str | None:
        """Return why it cannot be measured on this machine, or None if it can."""
        python = self.python(environment)
        if not Path(python).is_file():
            return f"{self.python_variable} names no Python: {python}"
        gone = [name for name in self.packages if version(name, python) is None]
        if gone:
            return f"not installed: {', '.join(gone)}: {self.install}{self._elsewhere()}"
        for name, limit in self.too_new.items():
            found = version(name, python)
            if found is not None and not below(found, limit):
                wanted = ".".join(map(str, limit))
                return f"does not start with {name} {found}: '{name}<{wanted}'{self._elsewhere()}"
        return self.missing(environment)

    def _elsewhere(self) -> str:
        if self.python_variable is None:
            return ""
        return f"; {self.python_variable}=<path> names another Python that has it"

    def versions(self, environment: Environment) -> str:
        """Return what is measured, in one line."""
        python = self.python(environment)
        found = [f"{name} {version(name, python)}" for name in self.packages]
        more = self.version(environment)
        return ", ".join([*found, *([more] if more else [])])

    def to_dict(self, environment: Environment) -> dict[str, Any]:
        """Return what a page says about it."""
        return {
            "name": self.name,
            "title": self.title,
            "versions": self.versions(environment),
        }


def all_faults_but(names: Iterable[str], why: str) -> dict[str, str]:
    """Return refusals of every fault that is not named; F0 never is refused."""
    kept = {"F0", *names}
    return {name: why for name in FAULTS if name not in kept}
