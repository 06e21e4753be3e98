"""Runs a session's actions as durable queries, without a change in the user's code.

Inside the `with` block, some actions are replaced on PySpark's own DataFrame class; at its end they
are restored. All other actions run as usual.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from durable_shuffle.jobs.identity.plan.jvm import every
from durable_shuffle.serialization.errors import InvalidInputError

ACTIONS = ("collect", "toPandas", "toArrow")
"""Actions that run on `query(df)` unchanged; count, write and writeTo are replaced separately."""

_WRITES = frozenset(
    {"save", "saveAsTable", "insertInto", "parquet", "json", "csv", "text", "orc", "xml", "jdbc"}
)
_WRITES_TO = frozenset(
    {"create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions"}
)

_EAGER = frozenset(
    {
        *("InsertIntoStatement", "InsertIntoDir", "CreateTableAsSelect", "ReplaceTableAsSelect"),
        *("CacheTable", "CacheTableAsSelect", "MergeIntoTable", "UpdateTable", "DeleteFromTable"),
        *("OverwriteByExpression", "AppendData", "OverwritePartitionsDynamic"),
        *("ExecuteImmediateQuery", "UnresolvedExecuteImmediate", "CompoundBody"),
    }
)
"""Statements whose query runs inside `sql()`."""

Query = Callable[[DataFrame], DataFrame]

_installed = threading.Lock()


@contextmanager
def sent_through(spark: SparkSession, query: Query) -> Iterator[None]:
    """Replace the actions of this application's DataFrames.

    Args:
        query: returns a DataFrame with the same rows, read from storage.

    Raises:
        InvalidInputError: another such block is open. Inside the block, `sql()` raises it for a
            statement that would run a query at once.
    """
    if not _installed.acquire(blocking=False):
        raise InvalidInputError("transparent() is open already: close that block first")
    try:
        patches = _patches(spark, query)
        before = {key: key[0].__dict__[key[1]] for key in patches}
        try:
            for (owner, name), value in patches.items():
                setattr(owner, name, value)
            yield
        finally:
            for (owner, name), value in before.items():
                setattr(owner, name, value)
    finally:
        _installed.release()


def _patches(spark: SparkSession, query: Query) -> dict[tuple[type, str], Any]:
    inside = threading.local()

    def covered(df: DataFrame) -> bool:
        """Return False for other applications, for streams, and inside a covered action."""
        mine = df.sparkSession.sparkContext is spark.sparkContext
        return mine and not df.isStreaming and not getattr(inside, "busy", False)

    def through(df: DataFrame, act: Callable[[DataFrame], Any]) -> Any:
        """Run the action on the durable frame; actions that it calls itself run as usual."""
        if not covered(df):
            return act(df)
        inside.busy = True
        try:
            return act(query(df))
        finally:
            inside.busy = False

    def action(name: str) -> Any:
        original = ClassicFrame.__dict__[name]

        def call(self: DataFrame, *args: Any, **kwargs: Any) -> Any:
            return through(self, lambda df: original(df, *args, **kwargs))

        call.__name__, call.__doc__ = name, original.__doc__
        return call

    original_collect = ClassicFrame.__dict__["collect"]
    original_count = ClassicFrame.__dict__["count"]
    original_write = ClassicFrame.__dict__["write"]
    original_write_to = ClassicFrame.__dict__["writeTo"]
    original_sql = SparkSession.__dict__["sql"]

    def count(self: DataFrame) -> int:
        if not covered(self):
            return int(original_count(self))
        counted = self.agg(F.count(F.lit(1)).alias("count"))
        return int(through(counted, original_collect)[0][0])

    def write(self: DataFrame) -> Any:
        return _Recorded(self, through, original_write.__get__, _WRITES)

    def write_to(self: DataFrame, table: str) -> Any:
        return _Recorded(self, through, lambda df: original_write_to(df, table), _WRITES_TO)

    def sql(self: SparkSession, sqlQuery: str, *args: Any, **kwargs: Any) -> Any:
        if self.sparkContext is spark.sparkContext and not getattr(inside, "busy", False):
            _refuse_eager(self, sqlQuery)
        return original_sql(self, sqlQuery, *args, **kwargs)

    patches: dict[tuple[type, str], Any] = {(ClassicFrame, name): action(name) for name in ACTIONS}
    patches[ClassicFrame, "count"] = count
    patches[ClassicFrame, "write"] = property(write)
    patches[ClassicFrame, "writeTo"] = write_to
    patches[SparkSession, "sql"] = sql
    return patches


class _Recorded:
    """Stands for a writer: records calls, and replays them on the real writer when it writes."""

    def __init__(
        self,
        df: DataFrame,
        through: Callable[[DataFrame, Callable[[DataFrame], Any]], Any],
        make: Callable[[DataFrame], Any],
        last: frozenset[str],
    ) -> None:
        self._df, self._through, self._make, self._last = df, through, make, last
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.append((name, args, kwargs))
            return self._through(self._df, self._replay) if name in self._last else self

        return call

    def _replay(self, df: DataFrame) -> Any:
        writer = self._make(df)
        for name, args, kwargs in self._calls:
            writer = getattr(writer, name)(*args, **kwargs)
        return writer


def _refuse_eager(spark: SparkSession, text: str) -> None:
    """Refuse an SQL statement that would run a query at once."""
    parser: Any = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
    try:
        plan = parser.parsePlan(text)
    except Exception:  # noqa: BLE001 - Spark itself says what is wrong with the text
        return
    names = (str(node.getClass().getSimpleName()) for node in every(plan))
    name = next((name for name in names if name in _EAGER), None)  # may be inside WITH or FROM
    if name is not None:
        raise InvalidInputError(
            f"{name}: this SQL statement runs its query at once, which transparent() does not "
            "cover: use DataFrame.write or writeTo, or run it outside the block"
        )
