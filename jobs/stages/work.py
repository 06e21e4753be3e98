"""What the store must know about a stage, to write it and to read it back.

`Writing` is the interface for storing. `repartition` and `durable` (here), Python stages and object
stages (`jobs/python_stage/`) and the exchanges of queries (`jobs/query/`) implement it; the order
of the steps is the same for all. `StageWork` adds what the user of a wrapped stage gets back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from durable_shuffle.jobs.deploy.running_code import running_code
from durable_shuffle.jobs.engine.engine import Engine, Planned, ReadBack
from durable_shuffle.jobs.engine.tasks import ArrowFunction, MapResult, map_function, read_function
from durable_shuffle.jobs.stages.identity import StageIdentity, identify_stage
from durable_shuffle.jobs.stages.request import CheckedRequest
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Shape:
    """What DESCRIBE says of a stage before its map side is planned."""

    codec: str
    schema: pa.Schema
    """Of the stored records, columns named c0, c1, …"""
    columns: tuple[str, ...]
    """The user's names of the columns."""
    partitioner: str
    keys: tuple[int, ...]
    partitions: int | None
    """R; None if there are as many as producers."""


class Writing(Protocol):
    """How a stage is written. Methods run only when needed; a sealed stage needs its name."""

    @property
    def name(self) -> str:
        """Label of the stage."""

    def shape(self) -> Shape:
        """Return what DESCRIBE will say; called only for a fresh stage."""

    def planning_settings(self) -> dict[str, str]:
        """Return the settings that decide input splits, with their current values."""

    def plan(self, conf: Mapping[str, str], *, large_rows: bool = False) -> Planned:
        """Plan the map side under `conf`; write nothing.

        May run small jobs: a sample for the bounds of ranges, a count on Spark Connect.

        Args:
            large_rows: limit the batches that tasks get by bytes, not only by rows.
        """

    def writer(
        self,
        stage: StageHandle,
        *,
        producers: int,
        settings: Settings,
        max_batch_bytes: int | None,
    ) -> Any:
        """Return the function that writes one producer's output in a Spark task.

        Args:
            max_batch_bytes: if Spark hands over a larger batch, the task ends with LargeRowsError.
        """

    def run(
        self, planned: Planned, function: Any, producers: Sequence[int], label: str
    ) -> list[MapResult]:
        """Run the map tasks of `producers` (at least) and return their results."""


class StageWork(Writing, Protocol[R_co]):
    """One wrapped stage: its identity, how its producers run, how it is read back."""

    def identify(self, version: str | None, ids: IdSource) -> StageIdentity:
        """Fingerprint the work; `version` vouches for inputs that cannot be resolved."""

    def read(self, stage: StageHandle, seal: Seal, *, settings: Settings) -> R_co:
        """Return the sealed stage in the form that the user gets."""


def row_writer(
    stage: StageHandle,
    *,
    producers: int,
    settings: Settings,
    max_batch_bytes: int | None,
    engine: Engine,
) -> ArrowFunction:
    """Return the function that writes one producer's rows as Spark hands them over."""
    return map_function(
        stage,
        producers=producers,
        settings=settings,
        tries=engine.task_tries,
        ends=engine.ends_partitions,
        code=running_code(),
        max_batch_bytes=max_batch_bytes,
    )


class FrameWork:
    """`repartition` and `durable`: rows come from Spark and go back to Spark unchanged."""

    def __init__(self, checked: CheckedRequest, engine: Engine) -> None:
        self._checked, self._engine = checked, engine

    @property
    def name(self) -> str:
        return self._checked.name

    def shape(self) -> Shape:
        checked = self._checked
        return Shape(
            codec="arrow",
            schema=self._engine.arrow_schema(checked.df),
            columns=tuple(checked.df.columns),
            partitioner=checked.partitioner,
            keys=checked.key_positions,
            partitions=checked.n,
        )

    def identify(self, version: str | None, ids: IdSource) -> StageIdentity:
        return identify_stage(self._checked, self._engine, version, ids)

    def planning_settings(self) -> dict[str, str]:
        return self._engine.planning_settings()

    def plan(self, conf: Mapping[str, str], *, large_rows: bool = False) -> Planned:
        checked = self._checked
        return self._engine.plan(checked.df, checked.cols, checked.n, conf, large_rows=large_rows)

    def writer(
        self,
        stage: StageHandle,
        *,
        producers: int,
        settings: Settings,
        max_batch_bytes: int | None,
    ) -> ArrowFunction:
        return row_writer(
            stage,
            producers=producers,
            settings=settings,
            max_batch_bytes=max_batch_bytes,
            engine=self._engine,
        )

    def run(
        self, planned: Planned, function: ArrowFunction, producers: Sequence[int], label: str
    ) -> list[MapResult]:
        return self._engine.run(planned, function, producers, label)

    def read(self, stage: StageHandle, seal: Seal, *, settings: Settings) -> DataFrame:
        back = ReadBack(
            function=read_function(stage, seal, settings=settings, code=running_code()),
            partitions=stage.describe.partitions,
            hashed_by=stage.describe.keys,
            rows=seal.rows,
            memory_bytes=seal.memory_bytes,
            fingerprint=f"{stage.path.name}-{stage.path.fingerprint}",
        )
        return self._engine.read(self._checked.df, back)
