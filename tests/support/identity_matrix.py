"""What a stage's identity compares, row by row as in docs/internals/identity.md, both ways.

A case makes a frame, the same frame again, and another one. A stage of the first must be found for
the second and must not be found for the third. The same cases run on classic Spark and on Connect.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from identity_judge import Case, Make, World
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def plus(amount: int) -> Callable[[int], int]:
    return lambda n: n + amount


def applied(function: Callable[..., Any]) -> Make:
    return lambda w: w.ids().select(F.udf(function, "long")("id").alias("x"))


def from_environment() -> Callable[[int], int]:
    """A function within a function: workers do not know this module."""
    return lambda n: n + len(os.environ.get("NOBODY_SETS_THIS", ""))


def data_source() -> Any:
    from pyspark.sql.datasource import DataSource, DataSourceReader  # since PySpark 4.0

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
        w.set(f"spark.sql.{name}", value)
        return make(w)

    return changed


def opposite(name: str, make: Make) -> Make:
    """With a setting that is true or false the other way round than by default."""

    def changed(w: World) -> DataFrame:
        value = w.session.conf.get(f"spark.sql.{name}") == "true"
        return set_to(name, str(not value).lower(), make)(w)

    return changed


def text_file(text: str, hours: int = 0, name: str = "x.csv", **options: str) -> Make:
    return lambda w: (
        w.session.read.options(**options)
        .schema("a string, b string")
        .csv(w.file(name, text, hours))
    )


def view(name: str, end: int) -> Make:
    def read(w: World) -> DataFrame:
        w.ids(end).createOrReplaceTempView(name)
        return w.session.table(name)

    return read


def variable(value: str) -> Make:
    """A function for workers with an environment variable."""

    def made_with(w: World) -> DataFrame:
        environment = w.session.sparkContext.environment
        environment["IDENTITY_MATRIX"] = value
        try:
            return applied(plus(1))(w)
        finally:
            del environment["IDENTITY_MATRIX"]

    return made_with


def slices(n: int) -> Make:
    return lambda w: w.session.range(0, 12, 1, n).select(F.spark_partition_id().alias("p"))


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
    Case(
        FILES,
        "time",
        *[text_file("a;b\n")] * 2,
        text_file("c;d\n", hours=1),
    ),
    Case(
        FILES,
        "length",
        *[text_file("a;b\n")] * 2,
        text_file("a;bb\n"),
    ),
    Case(
        FILES,
        "change",
        *[text_file("a;b\n")] * 2,
        text_file("a;c\n"),
        on_connect=("reused", "reused"),
    ),
    Case(FILES, "path", *[text_file("a;b\n")] * 2, text_file("a;c\n", name="y.csv")),
    Case(
        "options of a reader",
        "separator",
        text_file("a;b\n", sep=";"),
        text_file("a;b\n", sep=";"),
        text_file("a;b\n", sep=","),
    ),
    Case(
        "letter case of a reader's options",
        "name",
        text_file("a;b\n", sep=";"),
        text_file("a;b\n", SEP=";"),
        None,
        on_connect=("computed", "computed"),
    ),
    Case("rows of the driver", "a value", rows_of("a", "b"), rows_of("a", "b"), rows_of("a", "c")),
    Case(
        "rows of the driver",
        "list",
        *[lambda w: w.session.createDataFrame([(1, "a")], "k int, s string")] * 2,
        lambda w: w.session.createDataFrame([(1, "b")], "k int, s string"),
    ),
    Case(
        "tables and views",
        "view",
        view("matrix", 4),
        view("matrix", 4),
        view("matrix", 5),
        on_connect=("computed", "computed"),
    ),
    Case(
        "settings that change results",
        "time zone",
        ZONED,
        ZONED,
        set_to("session.timeZone", "Asia/Tokyo", ZONED),
    ),
    Case("settings that change results", "ansi", ZONED, ZONED, opposite("ansi.enabled", ZONED)),
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
    Case("partitions of `range`", "number", slices(3), slices(3), slices(4)),
    Case(
        "environment variables of Python workers",
        "value",
        variable("1"),
        variable("1"),
        variable("2"),
        on_connect=None,
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
        on_connect=("computed", "computed"),
    ),
    Case(
        "planning and splitting",
        "partitions",
        ZONED,
        set_to("shuffle.partitions", "17", ZONED),
        None,
    ),
    Case(
        "planning and splitting",
        "adaptive",
        ZONED,
        set_to("adaptive.enabled", "false", ZONED),
        None,
    ),
    Case(
        "planning and splitting",
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
        "the current time, user, database and catalog",
        "timestamp and user",
        *[lambda w: w.ids().select(F.current_timestamp(), F.current_user())] * 2,
        None,
        unrecognised=True,
    ),
    Case(
        "`rand()` without a seed",
        "rand",
        *[lambda w: w.ids().select(F.rand().alias("r"))] * 2,
        None,
        unrecognised=True,
        on_connect=("computed", "computed"),
    ),
    Case(
        "Python functions that read the clock, the environment, files, services or random numbers",
        "environment",
        applied(from_environment()),
        applied(from_environment()),
        None,
        unrecognised=True,
    ),
    Case(
        "checkpointed data",
        "checkpoint",
        *[lambda w: w.ids().localCheckpoint()] * 2,
        None,
        unrecognised=True,
        on_connect=("computed", "computed"),
    ),
    Case(
        "sources other than files, Delta Lake and Iceberg: JDBC, Hudi, Hive's own formats, "
        "connectors",
        "data source",
        made(1),
        made(1),
        None,
        unrecognised=True,
    ),
]


def connect_cases(step: int) -> list[Case]:
    """Return every so-many-th of the cases that Connect has, too."""
    return [case for case in CASES if case.on_connect is not None][::step]
