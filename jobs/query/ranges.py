"""Range exchanges: bounds from a sample, in a form that DESCRIBE can hold, and partition ids.

Strategy: consecutive sort columns of the same direction become one struct, because Spark compares
structs field by field, nulls first. If a column's nulls belong at the other end, a field before it
says whether it is null. A bound is a row of these structs in Spark's own binary form. The partition
id of a row comes from a binary search, written as nested IFs: rows above bound i-1 and up to bound
i, inclusive, go to partition i. Bounds decide how even the partitions are, never the order of rows.
"""

import base64
import json
from typing import Any, cast

from pyspark.sql import functions as F

from durable_shuffle.jobs.engine import catalyst
from durable_shuffle.jobs.identity.jvm.calls import items, module, to_seq
from durable_shuffle.jobs.spark_versions import ClassicFrame as DataFrame
from durable_shuffle.serialization.errors import CorruptDataError

_SAMPLES_PER_PARTITION = 50
_SAMPLE_ROWS = 10_000
MAX_RANGES = 64
"""Limit on the ranges of an exchange, if the user gave no number: the id expression has one
comparison per range."""


def count_of(bounds: str) -> int:
    """Return the number of ranges that the bounds make."""
    return len(_packed(bounds)) + 1


def _packed(bounds: str) -> list[bytes]:
    try:
        return [base64.b64decode(text, validate=True) for text in json.loads(bounds)]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptDataError(f"the bounds of a range exchange are damaged: {error}") from error


class RangeKeys:
    """The sort keys of a range partitioning, over the columns of `rows`."""

    def __init__(self, rows: DataFrame, partitioning: Any) -> None:
        self._rows = rows
        self._jvm: Any = cast("Any", rows).sparkSession._jvm  # noqa: SLF001
        self._expressions = getattr(self._jvm, "org.apache.spark.sql.catalyst.expressions")
        self._descending: list[bool] = []
        fields: list[list[Any]] = []
        for order in items(partitioning.ordering()):
            descending = str(order.direction().sql()) == "DESC"
            if not fields or descending != self._descending[-1]:
                fields.append([])
                self._descending.append(descending)
            nulls_first = str(order.nullOrdering().sql()) == "NULLS FIRST"
            if nulls_first == descending:
                fields[-1].append(self._expressions.IsNull(order.child()))
            fields[-1].append(order.child())
        self._structs = [self._struct(of_one) for of_one in fields]

    def bounds(self, ranges: int) -> str:
        """Return the upper bounds of all ranges but the last, as JSON; runs a Spark job.

        A small or uneven sample may give fewer ranges; `count_of` says how many.

        Args:
            ranges: from 1; with 1 nothing runs.
        """
        if ranges == 1:
            return json.dumps([])
        rows = self._sorted_sample(min(ranges * _SAMPLES_PER_PARTITION, _SAMPLE_ROWS))
        count = len(rows)
        chosen = sorted({count * (i + 1) // ranges - 1 for i in range(ranges - 1)} - {-1})
        packed = [base64.b64encode(bytes(rows[i].getBytes())).decode() for i in chosen]
        return json.dumps(packed)

    def partition_id(self, bounds: str) -> Any:
        """Return the Catalyst expression of a row's range, from 0 to the number of bounds.

        Raises:
            CorruptDataError: the bounds are not what `bounds` returned.
        """
        packed = _packed(bounds)
        return self._search([self._row(text) for text in packed], 0, len(packed))

    def _search(self, bounds: list[Any], low: int, high: int) -> Any:
        if low == high:
            return self._literal(low)
        middle = (low + high) // 2
        above = self._search(bounds, middle + 1, high)
        return self._expressions.If(
            self._after(bounds[middle]), above, self._search(bounds, low, middle)
        )

    def _after(self, bound: Any) -> Any:
        """Return the expression that is true if a row comes after a bound, struct by struct."""
        later = None
        for i in reversed(range(len(self._structs))):
            key, kind = self._structs[i], self._structs[i].dataType()
            value = self._expressions.Literal(bound.getStruct(i, kind.size()), kind)
            compare = self._expressions.LessThan if self._descending[i] else None
            after = (compare or self._expressions.GreaterThan)(key, value)
            if later is not None:
                same = self._expressions.EqualNullSafe(key, value)
                after = self._expressions.Or(after, self._expressions.And(same, later))
            later = after
        return later

    def _struct(self, fields: list[Any]) -> Any:
        named: list[Any] = []
        for i, field in enumerate(fields):
            named += [self._literal(f"f{i}"), field]
        return self._expressions.CreateNamedStruct(to_seq(self._jvm, named))

    def _literal(self, value: Any) -> Any:
        return module(self._jvm, "org.apache.spark.sql.catalyst.expressions.Literal").apply(value)

    def _row(self, packed: bytes) -> Any:
        row = self._expressions.UnsafeRow(len(self._structs))
        row.pointTo(packed, len(packed))
        return row

    def _sorted_sample(self, wanted: int) -> Any:
        """Return a random sample of the keys, sorted, as a JVM array of internal rows."""
        named = [
            catalyst.alias(self._jvm, struct, f"k{i}") for i, struct in enumerate(self._structs)
        ]
        keys = catalyst.project(self._rows, to_seq(self._jvm, named))
        order = [
            F.col(f"k{i}").desc() if descending else F.col(f"k{i}").asc()
            for i, descending in enumerate(self._descending)
        ]
        sample = keys.orderBy(F.rand()).limit(wanted).orderBy(*order)
        rows: Any = sample
        return rows._jdf.queryExecution().executedPlan().executeCollect()  # noqa: SLF001
