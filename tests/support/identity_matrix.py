"""What a stage's identity compares, row by row as in docs/identity.md, in both directions.

A case makes a frame, the same frame again, and another one. A stage of the first must be found for
the second and must not be found for the third. The same cases run on classic Spark and on Connect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import InvalidInputError

HOUR_NS = 3_600_000_000_000
CONNECT_VERSION = "no plan is recognised there without one"


@dataclass
class World:
    """Where a case works."""

    session: SparkSession
    folder: Path

    def ids(self, n: int = 6) -> DataFrame:
        return self.session.range(0, n, 1, 2)

    def file(self, name: str, text: str, hours: int = 0) -> str:
        """Write a file, with a time so many hours after a fixed one."""
        path = self.folder / name
        path.write_text(text)
        os.utime(path, ns=((400_000 + hours) * HOUR_NS,) * 2)
        return str(path)


Make = Callable[[World], DataFrame]


@dataclass(frozen=True)
class Case:
    """A frame, the same one made anew, another one."""

    row: str
    """First cell of the row in docs/identity.md."""
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


def plus(amount: int) -> Callable[[int], int]:
    return lambda n: n + amount


def applied(function: Callable[..., Any]) -> Make:
    return lambda w: w.ids().select(F.udf(function, "long")("id").alias("x"))


def from_environment() -> Callable[[int], int]:
    """A function within a function: workers do not know this module."""
    return lambda n: n + len(os.environ.get("NOBODY_SETS_THIS", ""))


def data_source() -> type[DataSource]:
    class Made(DataSource):
        """Rows that are made of an option."""

        @classmethod
        def name(cls) -> str:
            return "identity_matrix_made"

        def schema(self) -> str:
            return "id int"

        def reader(self, schema: Any) -> DataSourceReader:
            first = int(self.options["first"])

            class Reader(DataSourceReader):
                def read(self, partition: Any) -> Iterator[tuple[int]]:
                    yield from ((first + n,) for n in range(3))

            return Reader()

    return Made


def made(first: int) -> Make:
    def read(w: World) -> DataFrame:
        w.session.dataSource.register(data_source())
        return w.session.read.format("identity_matrix_made").option("first", first).load()

    return read


def sql(text: str) -> Make:
    return lambda w: w.session.sql(text)


def set_to(name: str, value: str, make: Make) -> Make:
    def changed(w: World) -> DataFrame:
        w.session.conf.set(f"spark.sql.{name}", value)
        return make(w)

    return changed


def text_file(text: str, hours: int = 0, **options: str) -> Make:
    return lambda w: (
        w.session.read.options(**options)
        .schema("a string, b string")
        .csv(w.file("x.csv", text, hours))
    )


def view(name: str, end: int) -> Make:
    def read(w: World) -> DataFrame:
        w.ids(end).createOrReplaceTempView(name)
        return w.session.table(name)

    return read


def rows_of(*values: str) -> Make:
    return lambda w: w.session.createDataFrame(pa.table({"s": list(values)}))


ZONED = sql("select cast(timestamp_seconds(0) as string) as t from range(2)")
EXPRESSIONS, FILES = "operators and expressions", "files"
CODE, VALUES = "code of Python functions", "values that Python functions use"
CASES = [
    Case(
        EXPRESSIONS,
        "literal",
        *[lambda w: w.ids().where("id < 3")] * 2,
        lambda w: w.ids().where("id < 4"),
    ),
    Case(
        EXPRESSIONS,
        "operator",
        *[lambda w: w.ids().orderBy("id")] * 2,
        lambda w: w.ids().orderBy(F.desc("id")),
    ),
    Case(
        EXPRESSIONS,
        "many in",
        *[sql("select id from range(40) where id in ({})".format(", ".join(map(str, range(20)))))]
        * 2,
        sql("select id from range(40) where id in (" + ", ".join(map(str, range(1, 21))) + ")"),
    ),
    Case(
        EXPRESSIONS,
        "seed",
        *[lambda w: w.ids().select(F.rand(1).alias("r"))] * 2,
        lambda w: w.ids().select(F.rand(2).alias("r")),
    ),
    Case(
        "column names and types",
        "name",
        *[lambda w: w.ids().toDF("a")] * 2,
        lambda w: w.ids().toDF("b"),
    ),
    Case(
        "column names and types",
        "type",
        *[lambda w: w.ids()] * 2,
        lambda w: w.ids().selectExpr("int(id) as id"),
    ),
    Case(FILES, "time", text_file("a;b\n"), text_file("a;b\n"), text_file("c;d\n", hours=1)),
    Case(FILES, "length", text_file("a;b\n"), text_file("a;b\n"), text_file("a;bb\n")),
    Case(
        "options of a reader",
        "separator",
        text_file("a;b\n", sep=";"),
        text_file("a;b\n", SEP=";"),
        text_file("a;b\n", sep=","),
    ),
    Case("rows of the driver", "a value", rows_of("a", "b"), rows_of("a", "b"), rows_of("a", "c")),
    Case(
        "rows of the driver",
        "list",
        *[lambda w: w.session.createDataFrame([(1, "a")], "k int, s string")] * 2,
        lambda w: w.session.createDataFrame([(1, "b")], "k int, s string"),
    ),
    Case(
        "what a table or view stands for",
        "view",
        view("matrix", 4),
        view("matrix", 4),
        view("matrix", 5),
    ),
    Case(
        "settings that change results",
        "time zone",
        ZONED,
        ZONED,
        set_to("session.timeZone", "Asia/Tokyo", ZONED),
    ),
    Case(
        "settings that change results", "ansi", ZONED, ZONED, set_to("ansi.enabled", "false", ZONED)
    ),
    Case(
        CODE, "body", applied(lambda n: n + 1), applied(lambda n: n + 1), applied(lambda n: n - 1)
    ),
    Case(VALUES, "closure", applied(plus(1)), applied(plus(1)), applied(plus(2))),
    Case(
        VALUES,
        "default",
        applied(lambda n, by=(1, 2): n + len(by)),
        applied(lambda n, by=(1, 2): n + len(by)),
        applied(lambda n, by=(1, 2, 3): n + len(by)),
    ),
    Case(
        "number of partitions and keys",
        "number",
        *[lambda w: w.ids()] * 3,
        lambda s, df: s.repartition(df, 3, "id"),
        lambda s, df: s.repartition(df, 2, "id"),
    ),
    Case(
        "number of partitions and keys",
        "key",
        *[lambda w: w.ids().selectExpr("id as a", "id % 2 as b")] * 3,
        lambda s, df: s.repartition(df, 3, "a"),
        lambda s, df: s.repartition(df, 3, "b"),
    ),
    Case(
        "number of partitions and keys",
        "function as key",
        *[lambda w: w.ids()] * 3,
        lambda s, df: s.repartition(df, 3, F.udf(plus(0), "long")("id")),
        lambda s, df: s.repartition(df, 3, F.udf(plus(5), "long")("id")),
    ),
    Case(
        "name of the stage",
        "name",
        *[lambda w: w.ids()] * 3,
        lambda s, df: s.durable(df, name="one"),
        lambda s, df: s.durable(df, name="two"),
    ),
    Case(
        "stages below",
        "stage",
        *[lambda w: w.ids().where("id > 1")] * 2,
        lambda w: w.ids().where("id > 2"),
        lambda s, df: s.durable(s.durable(df, name="low").selectExpr("*"), name="top"),
    ),
    Case(
        "`version=`", "version", made(1), made(1), made(1), versions=("v", "w"), unrecognised=True
    ),
    Case(
        "table, options and filters of other sources",
        "option",
        made(1),
        made(1),
        made(5),
        versions=("v", "v"),
        unrecognised=True,
    ),
    Case(
        "table, options and filters of other sources",
        "filter",
        lambda w: made(1)(w).where("id > 1"),
        lambda w: made(1)(w).where("id > 1"),
        lambda w: made(1)(w).where("id > 2"),
        versions=("v", "v"),
        unrecognised=True,
    ),
    Case(
        "aliases and names of views",
        "names",
        lambda w: w.ids().alias("a").select("a.id"),
        lambda w: w.ids().alias("b").select("b.id"),
        None,
    ),
    Case(
        "how Spark plans and cuts",
        "partitions",
        ZONED,
        set_to("shuffle.partitions", "17", ZONED),
        None,
    ),
    Case(
        "how Spark plans and cuts",
        "adaptive",
        ZONED,
        set_to("adaptive.enabled", "false", ZONED),
        None,
    ),
    Case(
        "how Spark plans and cuts",
        "broadcast",
        ZONED,
        set_to("autoBroadcastJoinThreshold", "-1", ZONED),
        None,
    ),
    Case(
        "credentials",
        "secret",
        text_file("a;b\n", **{"fs.s3a.secret.key": "one"}),
        text_file("a;b\n", **{"fs.s3a.secret.key": "two"}),
        None,
    ),
    Case(
        "content of a file of the same length and time",
        "content",
        text_file("a;b\n"),
        text_file("a;c\n"),
        None,
    ),
    Case(
        "the current time",
        "timestamp",
        *[lambda w: w.ids().select(F.current_timestamp().alias("t"))] * 2,
        None,
        unrecognised=True,
    ),
    Case(
        "`rand()` without a seed",
        "rand",
        *[lambda w: w.ids().select(F.rand().alias("r"))] * 2,
        None,
        unrecognised=True,
    ),
    Case(
        "Python functions that read from outside",
        "environment",
        applied(from_environment()),
        applied(from_environment()),
        None,
        unrecognised=True,
    ),
    Case(
        "cached and checkpointed data",
        "checkpoint",
        *[lambda w: w.ids().localCheckpoint()] * 2,
        None,
        unrecognised=True,
    ),
    Case("other sources", "data source", made(1), made(1), None, unrecognised=True),
]


def judge(world: World, case: Case, root: str, *, connect: bool) -> list[str]:
    """Return what is wrong with a case."""
    job = f"{case.row}-{case.what}".translate({ord(c): "_" for c in " `=(),"}) + "x"
    wrong: list[str] = []
    default = CONNECT_VERSION if connect and not case.unrecognised else None

    def stored(make: Make, call: Any, version: str | None, expected: str, which: str) -> None:
        new = getattr(world.session, "newSession", None)  # on Connect since 4.3
        session = world.session if new is None else new()
        here = World(session, world.folder)
        df = make(here)
        before = _rows(df) if "rand" not in job and "current" not in job else None
        shuffle = DurableShuffle(session, root, job=job, version=version or default)
        try:
            found = _rows(call(shuffle, df))
        except InvalidInputError as e:
            found = [str(e)]
        decision = shuffle.report().stages[-1].decision
        if decision != expected:
            wrong.append(f"{which}: {decision}, expected {expected}")
        if before is not None and found != before and case.row != _STALE:
            wrong.append(f"{which}: rows {found}, Spark's {before}")

    first, other = case.versions
    again = "fresh" if case.unrecognised and first is None else "reuse"
    stored(case.first, case.call, first, "fresh", "first")
    stored(case.same, case.call, first, again, "the same again")
    if case.other is not None:
        stored(case.other, case.other_call or case.call, other, "fresh", "the other")
    return wrong


_STALE = "content of a file of the same length and time"
"""The one row in which Spark itself gives other rows, as the page says."""


def _rows(df: DataFrame) -> list[str]:
    return sorted(map(str, df.collect()))
