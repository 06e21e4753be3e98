"""What the stage runner needs from a Spark session; one implementation per kind of session."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine.tasks import ArrowFunction, MapResult
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity


@dataclass(frozen=True, slots=True)
class Planned:
    """The map side of a stage, planned but not run."""

    df: DataFrame
    """Columns c0, c1, …, for hash partitioning the partition id, and the rows' numbers."""
    producers: int
    splits: str
    native_exchanges: int
    conf: dict[str, str]
    """The settings it was planned with; a descriptor keeps them."""
    partitions: int | None = None
    """R, if it was decided while planning."""


@dataclass(frozen=True, slots=True)
class ReadBack:
    """What the read side is made from."""

    function: ArrowFunction
    partitions: int
    hashed_by: tuple[int, ...]
    """Positions of the key columns; empty if rows are not hash partitioned."""
    rows: int
    memory_bytes: int
    fingerprint: str


class Engine(Protocol):
    """Classic Spark or Spark Connect. `df` always is the user's, untouched."""

    task_tries: int
    """How often Spark runs a failing task."""
    ends_partitions: bool
    """Whether plans put a row behind the last one of each partition (`row_numbers.py`)."""

    def cores(self) -> int:
        """How many tasks run at once, 0 if that is not known."""

    def arrow_schema(self, df: DataFrame) -> pa.Schema:
        """Arrow schema of the rows as Python workers see them, columns named c0, c1, …"""

    def key_positions(self, df: DataFrame, cols: Sequence[str | Column]) -> tuple[int, ...]:
        """Positions of plain key columns; empty if a key is computed."""

    def identify(self, df: DataFrame) -> PlanIdentity:
        """Fingerprint the plan of `df`."""

    def code_of(self, *functions: object) -> str:
        """Return what tasks that run these functions must prove, and see to it that no worker is
        used which imported older code of the user's."""

    def planning_settings(self) -> dict[str, str]:
        """The settings that decide input splits, with their values of now."""

    def plan(
        self,
        df: DataFrame,
        cols: Sequence[str | Column],
        n: int | None,
        conf: Mapping[str, str],
        *,
        large_rows: bool,
    ) -> Planned:
        """Plan the map side under `conf`. With `cols`, adds Spark's own partition ids modulo n.

        Args:
            large_rows: hand rows over in batches that are limited by their bytes.
        """

    def run(
        self, planned: Planned, function: ArrowFunction, producers: Sequence[int], label: str
    ) -> list[MapResult]:
        """Run the map tasks of `producers` (at least) and return their results.

        Raises:
            LargeRowsError: rows are too large for this plan; other producers may have committed.
        """

    def read(self, df: DataFrame, back: ReadBack) -> DataFrame:
        """Return a DataFrame with the columns of `df` over the stored rows."""

    def read_rows(self, schema: StructType, back: ReadBack) -> DataFrame:
        """Return a DataFrame with the columns of `schema` over rows that stand for themselves."""

    def run_numbered(
        self, function: ArrowFunction, tasks: int, schema: str, label: str
    ) -> list[dict[str, Any]]:
        """Run as many tasks, each given its number from 0, and return the rows that they yield."""
