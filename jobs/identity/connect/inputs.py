"""Asks a Spark Connect server what a plan reads. Runs small jobs.

- Files that are read by their path: path, length and time, as Spark lists them now.
- Tables of the catalog: each table's own provider is asked, because a Delta table prints as the
  Parquet files that it consists of. Delta says its version, Iceberg its metadata files; for other
  tables Spark says which files its list has, with their lengths and times.

All else is unresolved by its name.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle.jobs.identity.connect.known import (
    FILE_FORMATS,
    TABLE_FORMATS,
    ShownPlan,
)

_GLOBS = frozenset("{}[]*?\\")
_UNSTEADY = frozenset({"Last Access", "Statistics"})
"""Lines of a table's description that change although its rows do not."""


@dataclass(frozen=True, slots=True)
class PathSource:
    """What the client reads by path."""

    format: str
    """In lower case."""
    schema: str
    options: dict[str, str]
    paths: tuple[str, ...]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return what this source alone reads."""
        reader = spark.read.format(self.format).options(**self.options)
        reader = reader.schema(self.schema) if self.schema else reader
        return reader.load(list(self.paths)) if self.paths else reader.load()

    def delta_table(self) -> str:
        """Return the name of a Delta table; "" if it is not read by one path."""
        paths = self.paths or tuple(filter(None, [self.options.get("path")]))
        return f"delta.`{paths[0]}`" if len(paths) == 1 and "`" not in paths[0] else ""


@dataclass(slots=True)
class Inputs:
    """What was found."""

    files: list[str] = field(default_factory=list)
    """One line per file."""
    tables: list[str] = field(default_factory=list)
    """What providers and the catalog say."""
    texts: list[str] = field(default_factory=list)
    """SQL text of views."""
    unknown: list[str] = field(default_factory=list)
    """What is not known, in the user's words."""


class ConnectInputs:
    """Asks for the inputs of one plan."""

    def __init__(
        self,
        df: DataFrame,
        shown: ShownPlan,
        sources: Sequence[PathSource],
        frames: Collection[str],
    ) -> None:
        """Ask about the inputs of `df`.

        Args:
            frames: names that the client drew for frames in SQL text, which print as views.
        """
        self._df, self._shown, self._sources, self._frames = df, shown, sources, frames
        self._spark = df.sparkSession
        self.found = Inputs()

    def ask(self) -> Inputs:
        """Ask for everything. What cannot be asked is unresolved."""
        shown, found = self._shown, self.found
        by_path = [s for s in self._sources if s.format in FILE_FORMATS]
        delta = [s for s in self._sources if s.format == "delta"]
        for source in self._sources:
            if source.format not in FILE_FORMATS | {"delta"}:
                found.unknown.append(f"the data source {source.format}")
        if shown.files > len(by_path) + len(delta) and not (self._frames and by_path + delta):
            found.unknown.append("files that the client does not name")
        for source in delta:
            self._tried(f"the Delta table {source.paths}", self._delta, source.delta_table())
        for view in shown.views:
            self._view(view)
        kinds = {name: self._kind(name) for name in shown.tables}
        listed = [name for name, kind in kinds.items() if kind in TABLE_FORMATS]
        if by_path or listed:
            whole = not delta and not shown.subqueries and set(kinds.values()) <= TABLE_FORMATS
            frames = (
                [self._df]
                if whole
                else [
                    *(source.frame(self._spark) for source in by_path),
                    *(self._spark.table(name) for name in listed),
                ]
            )
            self._tried("files", self._files, frames, listed)
        return found

    def _tried(self, what: str, ask: Any, *arguments: Any) -> Any:
        try:
            return ask(*arguments)
        except PySparkException as error:
            first = str(error).strip().split("\n", 1)[0][:120]
            self.found.unknown.append(f"{what} ({first})")
            return None

    def _kind(self, name: str) -> str:
        """Append a table of the catalog, except for its files; return its provider."""
        quoted = ".".join(f"`{part}`" for part in name.split("."))
        described: dict[str, str] = self._tried(f"the table {name}", self._described, quoted) or {}
        kind = described.get("Provider", "").lower()
        if kind == "delta":
            self._tried(f"the Delta table {name}", self._delta, quoted)
        elif kind == "iceberg":
            self._tried(f"the Iceberg table {name}", self._iceberg, quoted)
        elif kind not in TABLE_FORMATS:
            self.found.unknown.append(f"the table {name} of provider {kind or 'unknown'}")
        return kind

    def _view(self, quoted: str) -> None:
        """Append a view of the catalog; those of the session are not known to the client."""
        name = quoted.replace("`", "")
        if name in self._frames:
            return
        if "." not in name or "global_temp" in name.split("."):
            self.found.unknown.append(f"the temporary view {name}")
        else:
            self._tried(f"the view {name}", self._described, quoted)

    def _described(self, name: str) -> dict[str, str]:
        """Append what the catalog says of a table or a view, and return it."""
        rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
        facts = [tuple(map(str, row)) for row in rows if row[0] not in _UNSTEADY]
        self.found.tables.append(repr((name, facts)))
        described = {str(row[0]): str(row[1]) for row in rows}
        if "View Text" in described:
            self.found.texts.append(described["View Text"])
        return described

    def _delta(self, name: str) -> None:
        detail = self._spark.sql(f"DESCRIBE DETAIL {name}").collect()
        newest = self._spark.sql(f"DESCRIBE HISTORY {name} LIMIT 1").collect()
        if len(detail) != 1 or len(newest) != 1:
            self.found.unknown.append(f"the Delta table {name}")
            return
        self.found.tables.append(repr((name, _facts(detail[0]), _facts(newest[0]))))

    def _iceberg(self, name: str) -> None:
        rows = self._spark.table(f"{name}.metadata_log_entries").collect()
        if not rows:
            self.found.unknown.append(f"the Iceberg table {name}")
        self.found.tables.append(repr((name, sorted(map(_facts, rows)))))

    def _files(self, frames: Sequence[DataFrame], tables: Collection[str]) -> None:
        """Append path, length and time of each file that the frames read."""
        paths = {_plain(unquote(path)) for frame in frames for path in _listed(frame)}
        known = {k: v for name in tables for k, v in self._of_table(name).items() if k in paths}
        rest = sorted(paths - known.keys())
        if any(_GLOBS & set(path) for path in rest):
            self.found.unknown.append("a file whose path has characters of a pattern")
            rest = []
        if rest:
            listed = self._spark.read.format("binaryFile").load(rest)
            rows = listed.select("path", "length", F.unix_micros("modificationTime")).collect()
            known |= {_plain(row[0]): repr(tuple(row[1:])) for row in rows}
        if known.keys() != paths:
            self.found.unknown.append("files that the server does not list")
        self.found.files += sorted(f"{path} {facts}" for path, facts in known.items())

    def _of_table(self, name: str) -> dict[str, str]:
        """Return path -> length and time of the files that have rows, as the plan has them.

        Spark keeps the list of a table's files for a session. It shows them only to a query.
        """
        facts = F.col("_metadata.file_size"), F.unix_micros("_metadata.file_modification_time")
        rows = self._spark.table(name).select("_metadata.file_path", *facts).distinct().collect()
        return {_plain(unquote(row[0])): repr(tuple(row[1:])) for row in rows}


def _listed(frame: DataFrame) -> list[str]:
    """Return the paths of a frame's files; a frame keeps the answer to its first call."""
    return frame.select("*").inputFiles()


def _facts(row: Any) -> str:
    return repr(sorted(row.asDict(recursive=True).items()))


def _plain(path: str) -> str:
    """Return a path with one slash after the scheme of local files."""
    return f"file:/{path[5:].lstrip('/')}" if path.startswith("file:/") else path
