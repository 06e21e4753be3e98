"""Decides whether the JVM or Python workers encode and decode the rows of a stage.

The JVM does it if the session has py4j, this Spark passed the probe (`probe.py`), and each
column has a kind (`kinds.py`). Otherwise Python workers do it, as on Spark Connect. Both write the
same format, so a stage that was written on one route can be read, and completed, on the other.
"""

import logging
from typing import Literal

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.jvm_rows.encoder import Encoding, Placed
from durable_shuffle.jobs.jvm_rows.kinds import UncoveredTypeError, column_kinds
from durable_shuffle.jobs.jvm_rows.probe import start_probe, why_refused
from durable_shuffle.serialization.errors import IncompatibleError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import PASSTHROUGH
from durable_shuffle.shuffle.log.stage import StageHandle

RowsIn = Literal["auto", "jvm", "python"]

_LOG = logging.getLogger(__name__)


class Route:
    """The route of the rows of one session.

    Args:
        rows_in: "python" never uses the JVM. "jvm" raises IncompatibleError where "auto" would
            use Python.
    """

    def __init__(self, spark: SparkSession, rows_in: RowsIn) -> None:
        self._spark, self._rows_in = spark, rows_in
        self._refused: str | None = None

    def prepare(self) -> None:
        """Start to find out what this session can do; whoever asks later waits less."""
        if self._rows_in != "python":
            start_probe(self._spark)

    def kinds(self, schema: StructType, stored: pa.Schema) -> str | None:
        """Return the kinds of the columns if the JVM encodes and decodes them, else None.

        Args:
            stored: schema of the frames.

        Raises:
            IncompatibleError: `rows_in` is "jvm", and the JVM cannot.
        """
        kinds, why = self._decide(schema, stored)
        if kinds is None and self._rows_in == "jvm":
            raise IncompatibleError(f"rows_in='jvm' is not possible: {why}; use rows_in='auto'")
        return kinds

    def why_python(self, schema: StructType, stored: pa.Schema) -> str:
        """Return why Python workers take these rows; "" if the JVM does."""
        return self._decide(schema, stored)[1]

    def _decide(self, schema: StructType, stored: pa.Schema) -> tuple[str | None, str]:
        if self._rows_in == "python":
            return None, "rows_in='python'"
        try:
            kinds = column_kinds(schema, stored)
        except UncoveredTypeError as error:
            return None, str(error)
        if self._refused is None:
            self._refused = why_refused(self._spark)
            if self._refused:
                _LOG.warning("rows go through Python workers: %s", self._refused)
        return (None, self._refused) if self._refused else (kinds, "")


def encoding_of(stage: StageHandle, settings: Settings, kinds: str) -> Encoding:
    """Return how the JVM encodes the rows of a stage.

    Args:
        kinds: of the columns, without the partition id.
    """
    placed: dict[str, Placed] = {"hash": "computed", "range": "computed", PASSTHROUGH: "producer"}
    return Encoding(
        kinds=kinds,
        partitions=stage.describe.partitions,
        placed=placed.get(stage.describe.partitioner, "turns"),
        stage_id=stage.path.incarnation,
        memory_bytes=settings.writer_memory_bytes,
        frame_bytes=settings.frame_bytes,
        max_frame_bytes=settings.max_frame_bytes,
        compression=stage.describe.compression,
    )
