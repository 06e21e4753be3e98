"""Runs random programs by Spark alone and through durable stages, and compares.

A program runs three times: by Spark alone, through a `DurableShuffle`, and through a second driver
of the same job with a session of its own, which must run no producer.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_spark import arrow_table
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from random_programs import Plain, Program, Writer, random_program
from random_steps import LEAVES, STEPS
from random_tables import read_tables

from durable_shuffle import DurableShuffle
from durable_shuffle.shuffle.base.settings import Settings

REFUSED = (PySparkException, Py4JJavaError)
"""What Spark raises by itself."""
MOST_TRIALS = 80
"""So many smaller programs are tried."""


@dataclass(frozen=True)
class Outcome:
    """What came of one run of a program."""

    rows: tuple[str, ...]
    """In their order, as texts that tell what Spark tells apart."""
    schema: str
    ordered: bool
    unresolved: bool
    text: str

    def differs(self, other: "Outcome") -> str:
        """Say in what another run differs from this one of Spark; "" if in nothing."""
        if self.schema != other.schema:
            return f"columns {other.schema}, Spark's {self.schema}"
        if sorted(self.rows) != sorted(other.rows):
            lost, more = _without(self.rows, other.rows), _without(other.rows, self.rows)
            return (
                f"{len(other.rows)} rows, Spark's {len(self.rows)}; "
                f"only Spark's {lost[:3]}, only the other's {more[:3]}"
            )
        zeros = [[row.replace("-0.0", "0.0") for row in o.rows] for o in (self, other)]
        return "the order of sorted rows" if self.ordered and zeros[0] != zeros[1] else ""


def _without(rows: Sequence[str], others: Sequence[str]) -> list[str]:
    found = list(rows)
    for row in others:
        if row in found:
            found.remove(row)
    return found


def _plain(value: Any) -> Any:
    """A value whose `repr` tells what Spark tells apart; NaN equals NaN, -0.0 is not 0.0."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    if isinstance(value, (tuple, list)):
        return tuple(map(_plain, value))
    if isinstance(value, dict):
        return tuple(sorted((repr(_plain(k)), repr(_plain(v))) for k, v in value.items()))
    return bytes(value) if isinstance(value, bytearray) else value


def carry_out(program: Program, session: SparkSession, store: Any) -> Outcome:
    """Run a program. `store` is a `DurableShuffle` or `Plain`."""
    writer = Writer(session, store, STEPS, LEAVES)
    frame = writer.write(program.tree)
    df, way, schema = frame.df, program.way, ""
    plain = isinstance(store, Plain)
    if way in ("durable", "repartition"):
        df = store.durable(df) if way == "durable" else store.repartition(df, 3)
    elif way == "query" and not plain:
        df = store.query(df, at_risk=risk_of(program))
    if way in ("query", "durable", "repartition"):
        schema, rows = df.schema.simpleString(), df.collect()
    elif plain:
        rows = _act(df, way)
    else:
        with store.transparent():
            rows = _act(df, way)
    return Outcome(
        rows=tuple(repr(_plain(tuple(row))) for row in rows),
        schema=schema,
        ordered=writer.ordered and way != "repartition",
        unresolved=writer.unresolved,
        text="\n".join([*writer.lines, f"# {frame.name}, by {way}"]),
    )


def risk_of(program: Program) -> str:
    """Return "1 h" for a fifth of the programs: Spark runs their exchanges itself."""
    return "1 h" if random.Random(repr(program)).random() < 0.2 else "nothing"


def _act(df: Any, way: str) -> list[Any]:
    if way == "count":
        return [(df.count(),)]
    if way == "first":
        return [(len(df.limit(1).collect()),)]
    if way == "toArrow":
        table = arrow_table(df)
        columns = [column.to_pylist() for column in table.columns]
        return list(zip(*columns, strict=True)) if columns else [()] * table.num_rows
    return list(df.collect())


def random_settings(draw: random.Random) -> dict[str, str]:
    """Settings of a session, for Spark alone and for stages alike."""
    found = {
        "shuffle.partitions": str(draw.choice([1, 2, 3, 5])),
        "ansi.enabled": draw.choice(["true", "false"]),
        "adaptive.enabled": draw.choice(["true", "false"]),
        "autoBroadcastJoinThreshold": draw.choice(["-1", "10485760", "400"]),
        "execution.arrow.maxRecordsPerBatch": draw.choice(["7", "10000"]),
    }
    if draw.random() < 0.5:  # even tiny partitions are divided
        found |= {
            "adaptive.skewJoin.skewedPartitionThresholdInBytes": "300b",
            "adaptive.skewJoin.skewedPartitionFactor": "1",
            "adaptive.advisoryPartitionSizeInBytes": "100b",
        }
    if draw.random() < 0.9:  # tiny rows cost less without compiling
        found |= {"codegen.wholeStage": "false", "codegen.factoryMode": "NO_CODEGEN"}
    return {f"spark.sql.{name}": value for name, value in found.items()}


@dataclass(frozen=True)
class Case:
    """A program, what Spark alone makes of it, and what differs."""

    name: str
    program: Program
    wanted: Outcome
    what: str = ""

    def __str__(self) -> str:
        return f"program {self.name}: {self.what}\n{self.wanted.text}\n{self.program!r}"


@dataclass
class Tally:
    """What was run."""

    programs: int = 0
    refused: int = 0
    """By Spark itself, and not counted as programs."""
    unresolved: int = 0
    producers: int = 0

    def __str__(self) -> str:
        return (
            f"{self.programs} programs, {self.unresolved} of them unresolved, "
            f"{self.producers} producers run; Spark itself refused {self.refused} more"
        )


class Family:
    """Random programs over one set of tables, in batches that share a job and their settings."""

    def __init__(self, spark: SparkSession, tables: Path, root: str) -> None:
        self._spark, self._tables, self._root = spark, tables, root
        self._trials = itertools.count()
        self.tally = Tally()

    def batch(self, seed: str, size: int) -> list[Case]:
        """Run the programs of a seed; return those that differ, made smaller.

        The stages of all programs lie in one job under the same names, so that a stage that is
        taken for another's shows.
        """
        cases = self.first(seed, size)
        failed = [case for case in cases if case.what]
        failed += self.second(seed, [case for case in cases if not case.what])
        return [self._shrunk(seed, case) for case in failed]

    def first(self, seed: str, size: int) -> list[Case]:
        """Run programs by Spark alone and through stages."""
        session, store = self.driver(seed, job=seed)
        cases: list[Case] = []
        for i in itertools.count():
            if len(cases) == size:
                break
            name = f"{seed}-{i}"
            program = random_program(name, STEPS, LEAVES)
            try:
                wanted = carry_out(program, session, Plain())
            except REFUSED:
                self.tally.refused += 1
                continue
            what = _compared(wanted, lambda: carry_out(program, session, store))  # noqa: B023
            cases.append(Case(name, program, wanted, what))
        self.tally.programs += size
        self.tally.unresolved += sum(case.wanted.unresolved for case in cases)
        self.tally.producers += int(store.report().total()["map_tasks_run"])
        return cases

    def second(self, seed: str, cases: Sequence[Case], *, job: str = "") -> list[Case]:
        """Run programs in a second driver; return those that differ or run a producer."""
        session, store = self.driver(seed, job=job or seed)
        failed = []
        for case in cases:
            before = len(store.report().stages)
            what = _compared(case.wanted, lambda: carry_out(case.program, session, store))  # noqa: B023
            ran = [s for s in store.report().stages[before:] if s.map_tasks_run]
            if not what and ran and not case.wanted.unresolved:
                what = f"{ran[0].map_tasks_run} producers ran again: {ran[0].why}"
            if what:
                failed.append(Case(case.name, case.program, case.wanted, f"second driver: {what}"))
        return failed

    def driver(self, seed: str, *, job: str) -> tuple[SparkSession, DurableShuffle]:
        """Return a session with the settings of a seed, and a driver that claims the job."""
        draw = random.Random(seed)
        session = self._spark.newSession()
        for name, value in random_settings(draw).items():
            session.conf.set(name, value)
        read_tables(session, self._tables)
        settings = Settings(result_least_bytes=draw.choice([0, 1 << 30]))
        return session, DurableShuffle(session, self._root, job=job, settings=settings)

    def _shrunk(self, seed: str, case: Case) -> Case:
        """Return the smallest program found that fails by itself; the whole one if none does."""
        left, smallest = MOST_TRIALS, self._alone(seed, case.name, case.program)
        if smallest is None:
            return Case(case.name, case.program, case.wanted, f"only in its batch: {case.what}")
        again = True
        while again:
            again = False
            for program in smallest.program.smaller():
                left -= 1
                found = self._alone(seed, case.name, program) if left > 0 else None
                if found is not None:
                    smallest, again = found, True
                    break
        return smallest

    def _alone(self, seed: str, name: str, program: Program) -> Case | None:
        """Run one program in a job of its own; return it if it fails."""
        job = f"{seed}-alone{next(self._trials)}"
        session, store = self.driver(seed, job=job)
        try:
            wanted = carry_out(program, session, Plain())
        except REFUSED:
            return None
        what = _compared(wanted, lambda: carry_out(program, session, store))
        case = Case(name, program, wanted, what)
        return case if what else next(iter(self.second(seed, [case], job=job)), None)


def _compared(wanted: Outcome, run: Callable[[], Outcome]) -> str:
    try:
        return wanted.differs(run())
    except Exception as e:  # noqa: BLE001 - whatever it is, Spark alone did not raise it
        return f"{type(e).__name__}: {str(e)[:400]}"
