"""The batch reader: reads the rows that a stage has when the query is planned.

If a filter says that the keys equal one of a few values, only the partitions that can hold such
rows are read. Spark still applies the filter to the rows that are read.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.types import StructType

from durable_shuffle.jobs.streaming.key_filter import subpartitions_for
from durable_shuffle.jobs.streaming.options import ReadOptions
from durable_shuffle.jobs.streaming.reading import Pieces, read_task, stage_of, tasks_of
from durable_shuffle.shuffle.stream.scan import standing_pieces


class BatchReader(DataSourceReader):
    """Reads all rows that are committed when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._wanted: dict[str, tuple[Any, ...]] = {}
        # PySpark refuses a reader class that defines `pushFilters` while
        # spark.sql.python.filterPushdown.enabled is off; this reader works either way
        self.pushFilters = _Pushed(self._wanted)  # type: ignore[method-assign]

    def partitions(self) -> Sequence[InputPartition]:
        stage = stage_of(self._options)
        pieces = standing_pieces(stage)
        kept = subpartitions_for(stage, self._wanted, self._schema)
        if kept is not None:
            pieces = [piece for piece in pieces if piece.extent.subpartition in kept]
        # with an empty list, Spark would call `read` with a partition that is not ours
        return list(tasks_of(stage, pieces)) or [Pieces(stage.path, ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Pieces)
        return read_task(self._options, partition, self._schema)


class _Pushed:
    """`pushFilters` of a reader: records the wanted key values, leaves all filtering to Spark."""

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, wanted: dict[str, tuple[Any, ...]]) -> None:
        self._wanted = wanted

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        for found in filters:
            if isinstance(found, (EqualTo, EqualNullSafe)) and len(found.attribute) == 1:
                self._wanted[found.attribute[0]] = (found.value,)
            elif isinstance(found, In) and len(found.attribute) == 1:
                self._wanted[found.attribute[0]] = tuple(found.value)
        return filters
