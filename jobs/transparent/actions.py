"""Runs a session's actions as durable queries, without a change in the user's code.

Inside the `with` block, some actions are replaced on PySpark's own DataFrame class; at its end they
are restored. All other actions run as usual. So does an action whose DataFrame cannot be stored:
the block never ends a program that Spark would run.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle.jobs.engine.catalyst import with_origin
from durable_shuffle.jobs.spark_versions import ClassicFrame
from durable_shuffle.jobs.stages.healing import healing
from durable_shuffle.jobs.transparent.labels import labelled
from durable_shuffle.jobs.transparent.overwrites import folder_of_table, overwrites_own_files
from durable_shuffle.jobs.transparent.statements import (
    frames_of,
    run_over,
    statement_in,
    statement_over,
)
from durable_shuffle.serialization.errors import InvalidInputError

ACTIONS = (
    *("collect", "toPandas", "toArrow", "tail", "isEmpty", "toLocalIterator"),
    *("foreach", "foreachPartition"),
)
"""Actions that run on `query(df)` unchanged; count, write and writeTo are replaced separately.
PySpark's first, head and take call collect. `docs/internals/actions.md` lists all of PySpark's."""

_ONCE = frozenset({"foreach", "foreachPartition"})
"""Those that a second call would do twice."""

CHECKPOINTS = ("checkpoint", "localCheckpoint")
"""Calls that store the rows of the frame. Loops in libraries and in users' code make them."""

_WRITES = frozenset(
    {
        *("save", "saveAsTable", "insertInto", "parquet", "json", "csv", "text", "orc", "xml"),
        *("jdbc", "create", "replace", "createOrReplace", "append", "overwrite"),
        "overwritePartitions",
    }
)
"""Methods of Spark's writers, of both kinds, that write."""

_FOLDERS = frozenset({"save", "parquet", "json", "csv", "text", "orc", "xml"})
"""Those that name a folder."""
_OVERWRITES = frozenset(
    {"save", "saveAsTable", "parquet", "json", "csv", "text", "orc", "xml", "jdbc"}
)
"""Those of which a second call, in mode overwrite, leaves what one call would have left."""

Query = Callable[[DataFrame], DataFrame]
Act = Callable[[DataFrame], Any]

_installed = threading.Lock()


@contextmanager
def sent_through(
    spark: SparkSession,
    job: str,
    query: Query,
    store: Query,
    mend: Callable[[], bool],
    left: Callable[[str], None],
) -> Iterator[None]:
    """Replace the actions of this application's DataFrames.

    Args:
        job: its name, for labels of what is written.
        query: returns a DataFrame with the same rows, read from storage; raises InvalidInputError
            for a DataFrame that cannot be stored.
        store: the same, with the rows themselves stored, in the partitions that they have.
        mend: mends what the last query reads; returns whether readers noted damage in it.
        left: is told what Spark runs as usual, and why.

    Raises:
        InvalidInputError: another such block is open.
    """
    if not _installed.acquire(blocking=False):
        raise InvalidInputError("transparent() is open already: close that block first")
    try:
        patches = _patches(spark, job, query, store, mend, left)
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


def _patches(
    spark: SparkSession,
    job: str,
    query: Query,
    store: Query,
    mend: Callable[[], bool],
    left: Callable[[str], None],
) -> dict[tuple[type, str], Any]:
    inside = threading.local()

    def covered(df: DataFrame) -> bool:
        """Return False for other applications, for streams, and inside a covered action."""
        mine = df.sparkSession.sparkContext is spark.sparkContext
        return mine and not df.isStreaming and not getattr(inside, "busy", False)

    def through(
        name: str,
        df: DataFrame,
        act: Act,
        *,
        again: bool = True,
        over: str | None = None,
        writes: str | None = None,
    ) -> Any:
        """Run the action on the durable frame; actions that it calls itself run as usual.

        Args:
            again: whether a second call does no harm, if the first one met damage.
            over: the folder that the action overwrites.
            writes: the command, for its label; None if it writes nothing.
        """
        if not covered(df):
            return act(df)

        def run(frame: DataFrame) -> Any:
            label = None if writes is None else labelled(frame.sparkSession, job, writes)
            with label or nullcontext():
                return act(frame)

        own = overwrites_own_files([df], [] if over is None else [over])
        inside.busy = True
        try:
            if own:
                return run(whole(name, df))
            return healing(lambda: run(durable(name, df)), lambda: mend() and again)
        finally:
            inside.busy = False

    def durable(name: str, df: DataFrame) -> DataFrame:
        """Return the durable frame, or the given one if it cannot be stored."""
        try:
            return query(df)
        except InvalidInputError as error:  # nothing of the action itself has run
            left(f"{name}(): {error}")
            return df

    def whole(name: str, df: DataFrame) -> DataFrame:
        """Return a frame that reads nothing but stored rows, or the given one, as above.

        Its action is called once: it deletes what the rows were made of.
        """
        try:
            rows = healing(lambda: store(df), mend)
        except InvalidInputError as error:
            left(f"{name}(): it may overwrite files that it reads, and {error}")
            return df
        rows, asked = cast("ClassicFrame", rows), cast("ClassicFrame", df)
        return with_origin(rows, asked)  # Spark checks a write of the user's plan

    def action(owner: type, name: str) -> Any:
        original = owner.__dict__[name]

        def call(self: DataFrame, *args: Any, **kwargs: Any) -> Any:
            again = name not in _ONCE
            return through(name, self, lambda df: original(df, *args, **kwargs), again=again)

        call.__name__, call.__doc__ = name, original.__doc__
        return call

    def checkpoint(name: str) -> Any:
        original = ClassicFrame.__dict__[name]

        def call(self: DataFrame, *args: Any, **kwargs: Any) -> Any:
            if not covered(self):
                return original(self, *args, **kwargs)
            inside.busy = True
            try:
                return healing(lambda: store(self), mend)
            except InvalidInputError as error:
                left(f"{name}(): {error}")
                return original(self, *args, **kwargs)
            finally:
                inside.busy = False

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
        return int(through("count", counted, original_collect)[0][0])

    def write(self: DataFrame) -> Any:
        writer = original_write.__get__(self)
        writer._jwrite = _JavaWriter(self, through, lambda df: df._jdf.write())  # noqa: SLF001
        return writer

    def write_to(self: DataFrame, table: str) -> Any:
        writer = original_write_to(self, table)
        writer._jwriter = _JavaWriter(self, through, lambda df: df._jdf.writeTo(table))  # noqa: SLF001
        return writer

    def sql(self: SparkSession, sqlQuery: str, *args: Any, **kwargs: Any) -> Any:
        if self.sparkContext is not spark.sparkContext or getattr(inside, "busy", False):
            return original_sql(self, sqlQuery, *args, **kwargs)
        statement = statement_in(self, sqlQuery)
        if statement is None:
            return original_sql(self, sqlQuery, *args, **kwargs)
        frames = [] if args or kwargs else frames_of(self, statement)
        own = overwrites_own_files(frames, statement.folders)

        def act() -> Any:
            stored = [(whole if own else durable)("sql", df) for df in frames]
            plan = None
            if any(new is not df for new, df in zip(stored, frames, strict=True)):
                plan = statement_over(self, statement, stored)
                if plan is None:
                    left(f"sql(): {statement.name} does not accept the stored rows of its query")
            with labelled(self, job, sqlQuery):
                if plan is None:
                    return original_sql(self, sqlQuery)
                return run_over(self, statement, plan)

        if not frames:
            left(f"sql(): {statement.name} runs its query at once, in Spark")
            with labelled(self, job, sqlQuery):
                return original_sql(self, sqlQuery, *args, **kwargs)
        inside.busy = True
        try:
            return healing(act, lambda: mend() and statement.again and not own)
        finally:
            inside.busy = False

    patches: dict[tuple[type, str], Any] = {}
    for name in ACTIONS:  # toPandas stands in a base class in 3.5, which has no toArrow
        owners = [kind for kind in ClassicFrame.__mro__ if name in kind.__dict__]
        patches |= {(kind, name): action(kind, name) for kind in owners[:1]}
    for name in CHECKPOINTS:
        patches[ClassicFrame, name] = checkpoint(name)
    patches[ClassicFrame, "count"] = count
    patches[ClassicFrame, "write"] = property(write)
    patches[ClassicFrame, "writeTo"] = write_to
    patches[SparkSession, "sql"] = sql
    return patches


class _JavaWriter:
    """Stands for the JVM's writer inside one of PySpark's own writers.

    It passes every call on, and remembers those that only configure. A call that writes is made on
    a new JVM writer of the durable frame, with the same configuration. A call that returns no
    writer and is not known here is an action: it has run in Spark, once, and is not remembered.

    Args:
        through: runs an action of a DataFrame.
        make: returns the JVM's writer of a DataFrame.
    """

    def __init__(self, df: DataFrame, through: Callable[..., Any], make: Act) -> None:
        self._df, self._through, self._make = df, through, make
        self._java = make(df)
        self._calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def write(*args: Any) -> Any:
            overwrites = self._mode() == "overwrite"
            return self._through(
                name,
                self._df,
                lambda df: self._write(df, name, args),
                again=name in _OVERWRITES and overwrites,
                over=self._folder(name, args) if overwrites and not self._keeps_files() else None,
                writes=" ".join([name, *map(str, args)]),
            )

        def configure(*args: Any) -> Any:
            if getattr(self._java, name)(*args) is None:
                return None
            self._calls.append((name, args))
            return self

        return write if name in _WRITES else configure

    def _mode(self) -> str:
        """Return the mode that was set last; "" if none was."""
        modes = (str(args[0]) for name, args in reversed(self._calls) if name == "mode")
        return next(modes, "").lower()

    def _keeps_files(self) -> bool:
        """Return whether the format keeps the files of what it replaces, for readers of before."""
        formats = (str(args[0]) for name, args in reversed(self._calls) if name == "format")
        return next(formats, "").lower() in ("delta", "iceberg")

    def _folder(self, name: str, args: tuple[Any, ...]) -> str | None:
        """Return the folder that a call deletes; None if there is none, or Spark itself looks."""
        if name == "saveAsTable":
            folder = folder_of_table(self._df.sparkSession, str(args[0]))
            if folder is not None:
                return folder
        elif args:
            return str(args[0]) if name in _FOLDERS else None
        paths = (
            values[1]
            for name, values in reversed(self._calls)
            if name == "option" and str(values[0]).lower() == "path"
        )
        return next((str(path) for path in paths), None)

    def _write(self, df: DataFrame, name: str, args: tuple[Any, ...]) -> Any:
        writer = self._make(df)
        for setting, values in self._calls:
            writer = getattr(writer, setting)(*values)
        return getattr(writer, name)(*args)
