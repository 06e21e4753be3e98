"""Judges a case of the identity matrix: what is found, what is not, and whether rows are Spark's.

A case makes a frame, the same frame again, and another one. A stage of the first must be found for
the second and must not be found for the third, on classic Spark and on Connect.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import InvalidInputError

HOUR_NS = 3_600_000_000_000


@dataclass
class World:
    """Where a case works."""

    session: SparkSession
    folder: Path
    changed: list[str] = field(default_factory=list)
    """Settings that a case made."""

    def set(self, name: str, value: str) -> None:
        """Set an SQL setting for the rest of this case's frame."""
        self.session.conf.set(name, value)
        self.changed.append(name)

    def ids(self, n: int = 6) -> DataFrame:
        return self.session.range(0, n, 1, 2)

    def file(self, name: str, text: str, hours: int = 0) -> str:
        """Write a file, with a time so many hours after a fixed one."""
        path = self.folder / name
        times = ((400_000 + hours) * HOUR_NS,) * 2
        if path.exists() and (path.read_text(), path.stat().st_mtime_ns) == (text, times[0]):
            return str(path)  # a file that was written again is another one
        path.write_text(text)
        os.utime(path, ns=times)
        return str(path)


Make = Callable[[World], DataFrame]


@dataclass(frozen=True)
class Case:
    """A frame, the same one made anew, another one."""

    row: str
    """First cell of the row in docs/internals/identity.md."""
    what: str
    first: Make
    same: Make
    other: Make | None
    """None: nothing about it makes a miss."""
    call: Callable[[DurableShuffle, DataFrame], DataFrame] = lambda s, df: s.durable(df)
    other_call: Callable[[DurableShuffle, DataFrame], DataFrame] | None = None
    versions: tuple[str | None, str | None] = (None, None)
    """Of the first two calls, and of the third."""
    unrecognised: bool = False
    """Without a version every call misses."""
    on_connect: tuple[str, str] | None = ("reused", "computed")
    """Decisions on Spark Connect: for the same, for the other. None: only classic Spark has it."""


@dataclass
class OneDriver:
    """The calls of a driver that has all cases: each case has names of its own.

    A second driver costs seconds on Connect, because its tasks look at the storage first.
    """

    shuffle: DurableShuffle
    prefix: str
    version: str | None

    def durable(self, df: DataFrame, name: str = "durable") -> DataFrame:
        """As that of the driver."""
        return self.shuffle.durable(df, name=f"{self.prefix}-{name}", version=self.version)

    def repartition(self, df: DataFrame, n: int, *cols: Any) -> DataFrame:
        """As that of the driver."""
        return self.shuffle.repartition(df, n, *cols, name=self.prefix, version=self.version)

    def report(self) -> Any:
        """As that of the driver."""
        return self.shuffle.report()


Drive = Callable[[SparkSession, str | None], Any]
"""The driver of a call, with this version: another one each time, or always the same."""


def judge(world: World, case: Case, drive: Drive, *, connect: bool) -> list[str]:
    """Return what is wrong with a case."""
    wrong: list[str] = []

    def stored(make: Make, call: Any, version: str | None, expected: str, which: str) -> None:
        # a session of its own costs a second on Connect
        session = world.session if connect else world.session.newSession()
        here = World(session, world.folder)
        df = make(here)
        as_spark = case.row not in _NOT_SPARKS and (which != "the other" or expected == "computed")
        before = _rows(df) if as_spark and (which != "first" or not connect) else None
        shuffle = drive(session, version)
        try:
            found = _rows(call(shuffle, df))
        except InvalidInputError as e:
            found = [str(e)]
        decision = shuffle.report().stages[-1].action
        if decision != expected:
            wrong.append(f"{which}: {decision}, expected {expected}")
        if before is not None and found != before:
            wrong.append(f"{which}: rows {found}, Spark's {before}")
        for name in here.changed if connect else ():
            session.conf.unset(name)

    first, other = case.versions
    again, changed = (case.on_connect if connect else None) or ("reused", "computed")
    if case.unrecognised and first is None:
        again = "computed"
    stored(case.first, case.call, first, "computed", "first")
    stored(case.same, case.call, first, again, "the same again")
    if case.other is not None:
        stored(case.other, case.other_call or case.call, other, changed, "the other")
    return wrong


_NOT_SPARKS = frozenset(
    {
        "the current time, user, database and catalog",
        "`rand()` without a seed",
    }
)
"""Rows of the page whose meaning is that Spark itself gives other rows the second time."""


def _rows(df: DataFrame) -> list[str]:
    return sorted(map(str, df.collect()))
