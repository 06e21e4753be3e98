"""Random programs whose rows may depend on the order in which rows arrive at an exchange.

`arrival` stands for that order: it permutes the rows of each map task by the number in a file,
and claims to be the same function whatever the file says. So two runs of one program see two
orders of arrival, as they do on a cluster.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

KEYS, EACH = 40, 6
SCHEMA = "k long, i long, p long, x double"
Step = Callable[[DataFrame], DataFrame]


class Arrival:
    """The order of rows, which `turn` changes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._file = folder / "order"
        self.turn(0)

    def turn(self, number: int) -> None:
        """Let rows arrive in another order from now on."""
        self._file.write_text(str(number))

    def rows(self, spark: Any) -> DataFrame:
        """Return KEYS * EACH rows in 3 partitions. Sums of `x` show the order of addition."""
        ids = spark.range(0, KEYS * EACH, 1, 3)
        columns = [
            *((F.col("id") % KEYS).alias("k"), (F.col("id") / KEYS).cast("long").alias("i")),
            F.col("id").alias("p"),
            (F.pow(F.lit(10.0), (F.col("id") / KEYS).cast("int") * 3) / (F.col("id") + 1)).alias(
                "x"
            ),
        ]
        return ids.select(*columns).mapInArrow(_Ordered(str(self._file)), SCHEMA)


class _Ordered:
    def __init__(self, file: str) -> None:
        self._file = file

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        number = Path(self._file).read_text()
        table = pa.Table.from_batches(list(batches))
        rows = list(range(table.num_rows))
        random.Random(number).shuffle(rows)
        yield from table.take(rows).combine_chunks().to_batches()

    def durable_identity(self) -> str:
        return "rows in the order of their arrival"


def _first_rows(table: pa.Table) -> pa.Table:
    return table.slice(0, 1).select(["k", "p"])


def _ties() -> Any:
    return Window.partitionBy("k").orderBy(F.lit(1))


UNSTABLE: dict[str, Step] = {
    "sum of doubles": lambda df: df.groupBy("k").agg(F.sum("x").alias("v")),
    "average": lambda df: df.groupBy("k").agg(F.avg("x").alias("v")),
    "deviation": lambda df: df.groupBy("k").agg(F.stddev("x").alias("v")),
    "first": lambda df: df.groupBy("k").agg(F.first("p").alias("v")),
    "any_value": lambda df: df.groupBy("k").agg(F.any_value("p").alias("v")),
    "max_by": lambda df: df.groupBy("k").agg(F.max_by("p", F.lit(1)).alias("v")),
    "collect_list": lambda df: df.groupBy("k").agg(F.collect_list("p")[0].alias("v")),
    "collect_set": lambda df: df.groupBy("k").agg(F.collect_set("p")[0].alias("v")),
    "mode": lambda df: df.groupBy("k").agg(F.mode("p").alias("v")),
    "row_number": lambda df: (
        df.withColumn("n", F.row_number().over(_ties()))
        .where("n = 1")
        .select("k", F.expr("p AS v"))
    ),
    "lag": lambda df: (
        df.withColumn("v", F.lag("p").over(_ties())).where("v IS NULL").select("k", "p")
    ),
    "sum over rows": lambda df: df.select(
        "k", F.sum("p").over(_ties().rowsBetween(Window.unboundedPreceding, 0)).alias("v")
    ),
    "dropDuplicates": lambda df: df.select("k", "p").dropDuplicates(["k"]),
    "applyInArrow": lambda df: df.groupBy("k").applyInArrow(_first_rows, "k long, p long"),
    "limit": lambda df: df.repartition(4, "k").limit(100).select("k", "p"),
    "limit of ties": lambda df: df.orderBy("i").limit(100).select("k", "p"),
    "numbers": lambda df: df.repartition(4, "k").select(
        "k", F.monotonically_increasing_id().alias("v")
    ),
    "random": lambda df: df.repartition(4, "k").select("k", (F.rand(3) * 1000).alias("v")),
    "sample": lambda df: df.repartition(4, "k").sample(0.5, seed=1).select("k", "p"),
}
"""Rows of these differ if rows arrive in another order."""
STABLE: dict[str, Step] = {
    "count": lambda df: df.groupBy("k").agg(F.count("*").alias("v")),
    "exact": lambda df: df.groupBy("k").agg(F.sum("p").alias("v"), F.max("i"), F.min("p")),
    "distinct": lambda df: df.select("k").distinct(),
    "count distinct": lambda df: df.groupBy("i").agg(F.countDistinct("k").alias("v")),
    "rank": lambda df: df.select("k", F.rank().over(Window.partitionBy("k").orderBy("i"))),
    "sum over all": lambda df: df.select("k", "p", F.sum("p").over(Window.partitionBy("k"))),
    "sum over values": lambda df: df.select(
        "k", F.sum("p").over(Window.partitionBy("k").orderBy("i")).alias("v")
    ),
    "join": lambda df: df.select("k", "p").join(df.select("k", "i").hint("merge"), "k"),
    "union": lambda df: df.select("k", "p").unionByName(df.select("k", F.expr("i AS p"))),
}
"""Rows of these are the same in any order of arrival."""


def _dimension(df: DataFrame) -> DataFrame:
    small = df.dropDuplicates(["k"]).select("k", F.expr("p AS q"))
    return df.select("k", "p").join(F.broadcast(small), "k")


def _subquery(df: DataFrame) -> DataFrame:
    df.createOrReplaceTempView("arrived")
    found = "SELECT first(p) FROM (SELECT /*+ REPARTITION(1) */ * FROM arrived)"
    return df.sparkSession.sql(f"SELECT k, p, ({found}) AS q FROM arrived")


SHARED: dict[str, Step] = {"broadcast": _dimension, "subquery": _subquery}
"""Every producer reads rows that differ if rows arrive in another order."""
EXCHANGES: dict[str, Step] = {
    "by turns": lambda df: df.repartition(4),
    "by the last column": lambda df: df.repartition(4, df.columns[-1]),
    "by all": lambda df: df.repartition(4, *df.columns),
    "twice": lambda df: df.repartition(3, df.columns[-1]).repartition(4),
}


PICKS = frozenset({"limit", "limit of ties", "sample"})
"""Steps that pick some of the rows."""


@dataclass(frozen=True)
class Program:
    """A program, and what all its runs have in common."""

    name: str
    steps: Step
    common: Callable[[DataFrame], object]
    """Returns what is the same in each run: of stable rows the rows, of others the keys."""


def program(number: random.Random) -> Program:
    """Draw a program."""
    stable = number.random() < 0.3
    if not stable and number.random() < 0.2:
        name = number.choice(sorted(SHARED))
        return Program(name, SHARED[name], _one_value_per_key)
    step = number.choice(sorted(STABLE if stable else UNSTABLE))
    return of_step(step, number.choice(sorted(EXCHANGES)))


def of_step(step: str, exchange: str) -> Program:
    """Return the program of a step with an exchange behind it."""
    first, after = {**STABLE, **UNSTABLE}[step], EXCHANGES[exchange]
    if step in STABLE:
        common: Callable[[DataFrame], object] = _rows
    elif step in PICKS:
        common = _unique_rows
    else:
        common = _keys
    return Program(f"{step}, {exchange}", lambda df: after(first(df)), common)


def _rows(df: DataFrame) -> object:
    return sorted(map(str, df.collect()))


def _keys(df: DataFrame) -> object:
    return sorted(row.k for row in df.select("k").collect())


def _unique_rows(df: DataFrame) -> object:
    """Each row that was picked is there once; how many are picked may follow from the order."""
    rows = df.select("k", "p").collect()
    return len(rows) == len(set(rows))


def _one_value_per_key(df: DataFrame) -> object:
    rows = df.select("k", "q").collect()
    return len(rows), len({row.k for row in rows}), len(set(rows)) <= len({row.k for row in rows})
