"""The interface between stages and a Spark session; one implementation per kind of session."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.engine.checks import check_columns
from durable_shuffle.jobs.engine.row_numbers import ROW_COLUMN, in_a_column
from durable_shuffle.jobs.engine.tasks import (
    ID_COLUMN,
    ArrowFunction,
    MapJob,
    MapResult,
    MapTasks,
    StoredRows,
    code_with,
    map_function,
)
from durable_shuffle.jobs.identity.functions.identity import identify_function
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity

OWN = "spark.durableShuffle."
"""Keys of DESCRIBE's planning that begin like this are no settings of Spark."""
COALESCES = OWN + "coalesces"
"""Key under which DESCRIBE keeps whether adaptive execution would join small partitions."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The map side of a stage, planned but not run."""

    df: DataFrame
    """The columns by position. For a Python worker they are named c0, c1, …, and the partition id
    follows for hash and range partitioning, then the row numbers."""
    producers: int
    splits: str
    native_exchanges: int
    conf: dict[str, str]
    """The settings that it was planned with; DESCRIBE keeps them."""
    partitions: int | None = None
    """R, if planning decided it."""
    place: Any | None = None
    """A Catalyst expression over the columns of `df`, from which the JVM computes the partition id;
    None if `df` has the id behind its columns, or needs none."""
    kinds: str | None = None
    """The kinds of the columns (`jobs/jvm_rows/kinds.py`) if the JVM encodes the rows; None if
    Python workers do."""
    rows: Any | None = None
    """Spark's RDD of the rows of `df`, of the JVM; None if it is not made yet. Making it from `df`
    costs another plan, and a copy of each row."""
    unproven: Callable[[bool], tuple[str, ...]] = field(kw_only=True)
    """Returns what is not proven to be the same in each run, given whether only a version vouches
    for functions of the plan: see `identity/plan/mixing.py`."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What an engine needs to make the read side."""

    stored: StoredRows
    hashed_by: tuple[int, ...]
    """Positions of the key columns; empty if rows are not hash partitioned."""
    row_count: int
    memory_bytes: int
    fingerprint: str
    ordered: bool
    """Whether each partition has the rows in the order of the stored DataFrame."""


class Engine(ABC):
    """Classic Spark or Spark Connect. `df` is the user's DataFrame, or what `fixed` made of it."""

    task_tries: int
    """How often Spark runs a failing task."""
    ends_partitions: bool
    """Whether plans add an end row after the last row of each partition (`row_numbers.py`)."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @abstractmethod
    def cores(self) -> int:
        """Return how many tasks run at once, 0 if unknown."""

    @abstractmethod
    def arrow_schema(self, df: DataFrame) -> pa.Schema:
        """Return the Arrow schema that Python workers see, columns named c0, c1, …"""

    @abstractmethod
    def key_positions(self, df: DataFrame, cols: Sequence[str | Column]) -> tuple[int, ...]:
        """Return the positions of the key columns in `df`; empty if any key is computed."""

    def fixed(self, df: DataFrame) -> DataFrame:
        """Return the same query over one version of each table; see `fixed_frame`."""
        return df

    @abstractmethod
    def identify(self, df: DataFrame) -> PlanIdentity:
        """Fingerprint the plan of `df`."""

    def inputs_move(self, components: Mapping[str, str]) -> bool:
        """Return whether rows may be those of later inputs than `identify` saw.

        Then the inputs are looked at again before the stage is sealed.
        """
        del components
        return False

    def code_of(self, *functions: object) -> str:
        """Return the code that tasks with these functions must prove to run (`tasks.check_code`).

        If the user's modules have changed, classic Spark gets new Python workers.
        """
        return code_with(identify_function(functions))

    @abstractmethod
    def planning_settings(self) -> dict[str, str]:
        """Return the settings that decide input splits, with their current values."""

    @abstractmethod
    def plan(
        self,
        df: DataFrame,
        cols: Sequence[str | Column],
        n: int | None,
        conf: Mapping[str, str],
        *,
        large_rows: bool,
        to_python: bool = False,
    ) -> Planned:
        """Plan the map side under `conf`. With `cols`, add Spark's own partition ids modulo n.

        Args:
            large_rows: limit the batches that tasks get by bytes, not only by rows.
            to_python: a user's Python function takes the rows.
        """

    @abstractmethod
    def start_workers(self) -> None:
        """Start Python on the executors, which map tasks would wait for; returns at once."""

    def write(self, planned: Planned, tasks: MapTasks, job: MapJob) -> list[MapResult]:
        """Store rows as Spark gives them; see `run`."""
        return self.run(planned, map_function(tasks), job)

    @abstractmethod
    def run(self, planned: Planned, function: ArrowFunction, job: MapJob) -> list[MapResult]:
        """Run the map tasks and return their results.

        Raises:
            LargeRowsError: rows are too large for this plan; other producers may have committed.
        """

    def why_python(self, schema: StructType) -> str:
        """Return why Python workers encode and decode such rows; "" if the JVM does."""
        del schema
        return "Spark Connect gives no access to the JVM"

    @abstractmethod
    def attempted_again(self, spark_stages: Collection[int]) -> bool:
        """Return whether Spark ran some of its stages again, having lost what their tasks read.

        True if that is not known, as for a stage that Spark has forgotten.
        """

    @abstractmethod
    def read(self, df: DataFrame, back: ReadBack) -> DataFrame:
        """Return a DataFrame with the columns of `df` over the stored rows."""

    @abstractmethod
    def read_rows(self, schema: StructType, back: ReadBack) -> DataFrame:
        """Return a DataFrame with the columns of `schema` over the stored rows."""

    def run_numbered(
        self, function: ArrowFunction, tasks: int, schema: str, label: str
    ) -> list[dict[str, Any]]:
        """Run this many tasks, each with its number from 0, and return the rows that they yield."""
        numbers = self._spark.range(0, tasks, 1, tasks)
        with self.described(label):
            return [row.asDict() for row in numbers.mapInArrow(function, schema).collect()]

    def check_columns(self, schema: StructType) -> None:
        """Refuse columns that cannot be stored.

        Raises:
            InvalidInputError: names the column and its type.
        """
        check_columns(schema)

    def coalesces(self) -> bool:
        """Return whether this session joins small partitions of a shuffle when it reads them."""
        return False

    def seen(self, code: Sequence[str]) -> list[str]:
        """Return what functions with this code opened in Spark's own workers, as far as known."""
        del code
        return []

    def described(self, label: str) -> AbstractContextManager[None]:
        """Show `label` in Spark's UI for the jobs that run meanwhile, if the session can."""
        del label
        return nullcontext()


def partition_id(cols: Sequence[str | Column], n: int | None) -> Column:
    """Return Spark's partition id of a row among `n` partitions by the columns."""
    return F.pmod(F.hash(*cols), F.lit(n))


def with_partition_ids(
    df: DataFrame, cols: Sequence[str | Column], n: int | None, number: Column | None
) -> DataFrame:
    """Return `df` with the columns that map tasks take.

    These are c0, c1, …; with `cols` Spark's partition id modulo `n`; and `number` as ROW_COLUMN.

    Args:
        number: the row numbers, or zeros for `rdd_frames.counted_to_the_end`; None if the JVM
            encodes the rows, because then nothing has to be counted.
    """
    names = [f"c{i}" for i in range(len(df.columns))]
    more: list[Column] = []
    if cols:
        names.append(ID_COLUMN)
        more.append(partition_id(cols, n))
    if number is not None:
        names.append(ROW_COLUMN)
        more.append(number)
    return df.select("*", *more).toDF(*names)


@contextmanager
def session_settings(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Set these settings of a session, then restore the old values."""
    before = _values_set(spark, values) if values else {}
    try:
        for key, value in values.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key in values:
            if key in before:
                spark.conf.set(key, before[key])
            else:
                spark.conf.unset(key)


def _values_set(spark: SparkSession, keys: Iterable[str]) -> dict[str, str]:
    """Return the values that are set, not the defaults."""
    if is_connect(spark):
        every = spark.conf.getAll
        return {key: every[key] for key in keys if key in every}
    conf: Any = spark._jsparkSession.conf()  # noqa: SLF001
    return {key: str(conf.get(key)) for key in keys if conf.contains(key)}


def rows_of_tasks(
    session: SparkSession, function: ArrowFunction, tasks: int, schema: StructType
) -> DataFrame:
    """Return a DataFrame over the rows that `function` yields, one partition per task.

    The function gets the number of its task, from 0, in a column.
    """
    numbers = session.range(0, tasks, 1, tasks)
    if schema.fields:
        return numbers.mapInArrow(function, schema)

    def in_column(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return in_a_column(function(batches))

    return numbers.mapInArrow(in_column, f"{ROW_COLUMN} byte").select()
