"""Tells the store how to write a stage and how to read it back.

`Writing` is how a stage is written; each exchange of a query is one (`jobs/query/`). `StageWork`
adds what the user of a stage gets back: `FrameWork` here for `repartition` and `checkpoint`, Python
stages and object stages in `jobs/python_stage/`. The order of the steps is the same for all.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from durable_shuffle.jobs.engine.checks import NO_STREAM, check_frame, check_key
from durable_shuffle.jobs.engine.engine import COALESCES, Engine, Planned, ReadBack
from durable_shuffle.jobs.engine.tasks import MapJob, MapResult, MapTasks, stored_rows
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.plan.files import first_changed
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity
from durable_shuffle.jobs.spark_versions import condition_of
from durable_shuffle.jobs.stages.identity import StageIdentity
from durable_shuffle.recovery.grouping import even_groups
from durable_shuffle.serialization.errors import (
    ConflictError,
    InvalidInputError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.records import PASSTHROUGH, Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.partitioner import check_partition_count

R_co = TypeVar("R_co", covariant=True)
_LEAST_BYTES = 1 << 20
"""A task reads several partitions of a checkpoint that together have less; Spark's own minimum."""


_CHANGED = "inputs that changed while they were stored"


class InputsChangedError(ConflictError):
    """What a stage reads changed while it was stored, so some rows may be missing or twice."""


class TwoExecutionsError(UnavailableError):
    """Producers of one stage may have got rows of two executions of what lies below it."""


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


class Writing(ABC):
    """How a stage is written. Methods run only when needed; a sealed stage needs its name."""

    name: str
    """Label of the stage."""
    engine: Engine

    @abstractmethod
    def shape(self) -> Shape:
        """Return what DESCRIBE will say; called only for a fresh stage."""

    def planning_settings(self) -> dict[str, str]:
        """Return the settings that decide input splits, with their current values."""
        return self.engine.planning_settings()

    @abstractmethod
    def plan(self, conf: Mapping[str, str], *, large_rows: bool = False) -> Planned:
        """Plan the map side under `conf`; write nothing.

        May run small jobs: a sample for the bounds of ranges, a count on Spark Connect.

        Args:
            large_rows: limit the batches that tasks get by bytes, not only by rows.
        """

    def still_reads(self, components: Mapping[str, str]) -> bool:
        """Return whether the inputs are those of a stage's identity.

        Always true if a plan holds its inputs.
        """
        del components
        return True

    def check_inputs(self, identity: StageIdentity, *, at_once: bool) -> str:
        """Return which inputs are no longer those of the identity; "" if all are.

        Args:
            at_once: whether one plan has read all rows.

        Raises:
            InputsChangedError: rows of different inputs may have been mixed.
        """
        if identity.unresolved:
            return ""
        if not identity.vouched and not self.still_reads(identity.components):
            raise InputsChangedError(_CHANGED)  # each plan lists them
        path = first_changed(identity.files)
        why = f"{_CHANGED} ({path})" if path else ""
        if why and not at_once:
            raise InputsChangedError(why)
        return why

    def write(self, planned: Planned, tasks: MapTasks, job: MapJob) -> list[MapResult]:
        """Run the map tasks and return their results.

        Unless overridden, the tasks write rows as Spark gives them.
        """
        return self.engine.write(planned, tasks, job)


class StageWork(Writing, Generic[R_co]):
    """One wrapped stage: its identity, how its producers run, how it is read back."""

    @abstractmethod
    def identify(self) -> PlanIdentity:
        """Return everything that decides the rows and the partitions."""

    def still_reads(self, components: Mapping[str, str]) -> bool:
        if not self.engine.inputs_move(components):
            return True
        now = self.identify()
        same = (components.get(name) == digest for name, digest in now.components.items())
        return not now.unresolved and all(same)

    def why_python(self) -> str:
        """Return why Python encodes the rows; "" if the JVM does, or if user code makes them."""
        return ""

    @abstractmethod
    def read(self, stage: StageHandle, seal: Seal, *, settings: Settings) -> R_co:
        """Return the sealed stage in the form that the user gets."""


class FrameWork(StageWork[DataFrame]):
    """`repartition` and `checkpoint`: rows come from Spark and go back to Spark unchanged.

    Args:
        n: number of partitions; None keeps those of `df` (`checkpoint`).
        cols: the key columns.

    Raises:
        InvalidInputError: names what is wrong: the label, n, a column or its type.
    """

    def __init__(
        self,
        df: DataFrame,
        engine: Engine,
        *,
        name: str,
        n: int | None = None,
        cols: tuple[str | Column, ...] = (),
    ) -> None:
        check_name("name", name)
        check_frame(df, streaming=NO_STREAM)
        if n is not None:
            check_partition_count(n)
        engine.check_columns(df.schema)
        self.name, self.engine = name, engine
        self._df, self._n, self._cols = engine.fixed(df), n, cols
        self._partitioner = PASSTHROUGH if n is None else "round_robin"
        self._key_positions: tuple[int, ...] = ()
        """Empty without keys, or if any key is computed."""
        if cols:
            _check_keys(df, cols)
            self._partitioner = "hash"
            self._key_positions = engine.key_positions(df, cols)

    def shape(self) -> Shape:
        return Shape(
            codec="arrow",
            schema=self.engine.arrow_schema(self._df),
            columns=tuple(self._df.columns),
            partitioner=self._partitioner,
            keys=self._key_positions,
            partitions=self._n,
        )

    def identify(self) -> PlanIdentity:
        df = self._df
        if self._cols and not self._key_positions:  # computed keys are part of the identity too
            keys = [F.col(c) if isinstance(c, str) else c for c in self._cols]
            df = df.select("*", *(key.alias(f"key{i}") for i, key in enumerate(keys)))
        plan = self.engine.identify(df)
        shape = [self._partitioner, self._n, self._key_positions, len(self._cols)]
        partitioning = hex_digest(map(str, shape))
        return replace(plan, components={**plan.components, "partitioning": partitioning})

    def why_python(self) -> str:
        return self.engine.why_python(self._df.schema)

    def plan(self, conf: Mapping[str, str], *, large_rows: bool = False) -> Planned:
        return self.engine.plan(self._df, self._cols, self._n, conf, large_rows=large_rows)

    def read(self, stage: StageHandle, seal: Seal, *, settings: Settings) -> DataFrame:
        groups = None
        coalesced = stage.describe.planning.get(COALESCES) == "true" and self.engine.coalesces()
        if coalesced and stage.describe.partitioner == PASSTHROUGH:
            least = -(-seal.memory_bytes // _LEAST_BYTES)
            groups = even_groups(stage.describe.partitions, least)
        fingerprint = f"{stage.path.name}-{stage.path.fingerprint}"
        if stage.unrecognised:  # it does not tell the rows
            fingerprint += f"-{stage.path.incarnation}"
        back = ReadBack(
            stored=stored_rows(stage, seal, settings=settings, groups=groups),
            hashed_by=stage.describe.keys,
            row_count=seal.rows,
            memory_bytes=seal.memory_bytes,
            fingerprint=fingerprint,
            ordered=stage.describe.partitioner == PASSTHROUGH,
        )
        return self.engine.read(self._df, back)


def _check_keys(df: DataFrame, cols: tuple[str | Column, ...]) -> None:
    try:
        keys = df.select(*cols).schema
    except AnalysisException as e:
        shown = ", ".join(str(c) for c in cols)
        raise InvalidInputError(
            f"key column not usable: asked for {shown}; columns are "
            f"{', '.join(df.columns)} ({condition_of(e) or 'analysis failed'})"
        ) from e
    for field in keys:
        check_key(field.name, field.dataType)
