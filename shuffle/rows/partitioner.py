"""Compute the partition of each row, and group the rows by partition.

Strategy: hash ids are Spark's own, `pmod(hash(keys...), n)`, so that equal keys get the same
partition here and in Spark's `repartition(n, keys...)`. Ids of up to 65,536 partitions are uint16,
which numpy's stable sort handles as a radix sort; wider ids are sorted in two such passes.

It must not know where rows come from or go to, and must not depend on Spark.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.rows.spark_hash import spark_hash

# Every producer keeps a buffer, counts and an extent per partition, a few hundred bytes: a million
# partitions are already hundreds of MB per producer. Spark jobs rarely go beyond 100,000.
MAX_PARTITIONS = 1_000_000

# uint16 holds the ids of this many partitions.
NARROW_PARTITIONS = 65_536

Ids = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]


def check_partition_count(partitions: int) -> None:
    """Refuse a value that is no usable number of partitions.

    Raises:
        InvalidInputError: the value is not an int, or a bool, or below 1 or above MAX_PARTITIONS.
    """
    if isinstance(partitions, bool) or not isinstance(partitions, int):
        raise InvalidInputError(
            f"partition count must be an int, found {type(partitions).__name__} {partitions!r}"
        )
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidInputError(
            f"partition count must be from 1 to {MAX_PARTITIONS}, found {partitions}"
        )


def hash_partition_ids(columns: Sequence[pa.Array | pa.ChunkedArray], partitions: int) -> Ids:
    """Return the partition id of each row, equal to that of Spark's hash partitioning.

    The collation of strings is not checked: only UTF8_BINARY is partitioned as in Spark.

    Args:
        columns: the keys, at least one, all of the same length; their order matters.
        partitions: the number of partitions; ids are below it.

    Raises:
        InvalidInputError: a bad partition count, or columns that `spark_hash` refuses.
    """
    check_partition_count(partitions)
    # numpy's remainder takes the sign of the divisor, which is Spark's pmod.
    return narrow_ids(np.remainder(spark_hash(columns), np.int32(partitions)), partitions)


def round_robin_ids(start: int, rows: int, partitions: int) -> Ids:
    """Return the partition id `(start + i) % partitions` for each row i.

    These are not the ids of Spark's `repartition(n)`, which depend on the order of Spark's tasks.

    Raises:
        InvalidInputError: a bad partition count, or a negative number of rows.
    """
    check_partition_count(partitions)
    if rows < 0:
        raise InvalidInputError(f"number of rows must not be negative, found {rows}")
    first = start % partitions
    return narrow_ids(np.arange(first, first + rows, dtype=np.int64) % partitions, partitions)


def counting_sort(ids: Ids, partitions: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]:
    """Group rows by partition; rows of one partition keep their order.

    Returns:
        The row indices, partition by partition, and the number of rows of each partition: the rows
        of partition k are `order[sum(counts[:k]):][:counts[k]]`.

    Raises:
        InvalidInputError: a bad partition count, ids that are neither uint16 nor uint32, or an id
            that is not below `partitions`.
    """
    check_partition_count(partitions)
    if ids.dtype not in (np.uint16, np.uint32):
        raise InvalidInputError(f"partition ids must be uint16 or uint32, found {ids.dtype}")
    largest = int(ids.max(initial=0))
    if largest >= partitions:
        raise InvalidInputError(f"partition id {largest} is not below {partitions} partitions")
    counts = np.bincount(ids, minlength=partitions).astype(np.int64, copy=False)
    if ids.dtype == np.uint16:
        return np.argsort(ids, kind="stable"), counts
    low = np.argsort(ids.astype(np.uint16), kind="stable")
    high = (ids >> np.uint32(16)).astype(np.uint16)[low]
    return low[np.argsort(high, kind="stable")], counts


def narrow_ids(ids: npt.NDArray[Any], partitions: int) -> Ids:
    """Return partition ids in the smallest type that holds them; see `Ids`."""
    return ids.astype(np.uint16) if partitions <= NARROW_PARTITIONS else ids.astype(np.uint32)
