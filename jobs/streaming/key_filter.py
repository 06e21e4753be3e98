"""Finds the partitions that can hold rows with given key values."""

from collections.abc import Mapping
from itertools import product
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from durable_shuffle.jobs.streaming.schemas import stored_schema
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.partitioner import hash_partition_ids

_MOST_COMBINATIONS = 1000


def subpartitions_for(
    stage: StageHandle, wanted: Mapping[str, tuple[Any, ...]], schema: StructType
) -> frozenset[int] | None:
    """Return the subpartitions to read; None for all.

    Args:
        wanted: column -> the values that it may have.
        schema: what Spark asks for; the values have its types.
    """
    describe = stage.describe
    if describe.partitioner != "hash" or not describe.keys:
        return None
    names = [describe.columns[k] for k in describe.keys]
    if any(name not in wanted or name not in schema.names for name in names):
        return None
    stored = stored_schema(stage, describe.schema)
    choices = [wanted[name] for name in names]
    count = 1
    for values in choices:
        count *= len(values)
    if not 0 < count <= _MOST_COMBINATIONS:
        return None
    rows = list(product(*choices))
    try:
        columns = [
            pa.array([row[n] for row in rows], stored.field(name).type)
            for n, name in enumerate(names)
        ]
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None  # the key's type cannot hold these values: read all, Spark compares
    return frozenset(hash_partition_ids(columns, describe.partitions).tolist())
