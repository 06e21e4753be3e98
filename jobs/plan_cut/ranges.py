"""Range exchanges: bounds from a sample, as bytes that a descriptor can hold, and partition ids.

Strategy: the sort keys become structs, one per run of columns of one direction, because Spark
compares structs field by field, nulls first; a column with its nulls at the other end gets a field
before it that says whether it is null. A bound is such a row in Spark's own binary form. The id of
a row is found by a binary search written as nested IFs: rows up to and with bound i go to
partition i. Bounds decide only how even the partitions are, never the order of the rows.
"""

import base64
import json
from typing import Any, cast

from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame

from durable_shuffle.jobs.engine import catalyst
from durable_shuffle.jobs.identity.plan.jvm import items
from durable_shuffle.serialization.errors import CorruptDataError

_SAMPLES_PER_PARTITION = 50
_SAMPLE_ROWS = 10_000
MAX_RANGES = 64
"""Ranges of an exchange whose number nobody asked for: a comparison per range and row is paid."""


def count_of(bounds: str) -> int:
    """Return the number of ranges that bounds divide the rows into."""
    return len(json.loads(bounds)) + 1


class RangeKeys:
    """The sort keys of a range partitioning, over the columns of `rows`."""

    def __init__(self, rows: DataFrame, partitioning: Any) -> None:
        self._rows = rows
        self._jvm: Any = cast("Any", rows).sparkSession._jvm  # noqa: SLF001
        self._expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
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
        """Return text that holds the upper bounds of all ranges but the last; runs a job.

        Args:
            ranges: from 1; with 1 nothing runs.
        """
        if ranges == 1:
            return json.dumps([])
        rows = self._sorted_sample(min(ranges * _SAMPLES_PER_PARTITION, _SAMPLE_ROWS))
        count = len(rows)
        chosen = sorted({count * (i + 1) // ranges - 1 for i in range(ranges - 1)} - {-1})
        packed = [base64.b64encode(bytes(rows[at].getBytes())).decode() for at in chosen]
        return json.dumps(packed)

    def partition_id(self, bounds: str) -> Any:
        """Return the Catalyst expression of a row's range, from 0; the number of ranges is that of
        the bounds plus 1.
        """
        try:
            packed = [base64.b64decode(one, validate=True) for one in json.loads(bounds)]
        except ValueError as error:
            raise CorruptDataError(
                f"the bounds of a range exchange are damaged: {error}"
            ) from error
        return self._search([self._row(one) for one in packed], 0, len(packed))

    def _search(self, bounds: list[Any], low: int, high: int) -> Any:
        if low == high:
            return self._literal(low)
        middle = (low + high) // 2
        above = self._search(bounds, middle + 1, high)
        return self._expressions.If(
            self._after(bounds[middle]), above, self._search(bounds, low, middle)
        )

    def _after(self, bound: Any) -> Any:
        """Whether a row comes after a bound: by its first struct, then by the next."""
        found = None
        for at in reversed(range(len(self._structs))):
            key, kind = self._structs[at], self._structs[at].dataType()
            value = self._expressions.Literal(bound.getStruct(at, kind.size()), kind)
            compare = self._expressions.LessThan if self._descending[at] else None
            after = (compare or self._expressions.GreaterThan)(key, value)
            if found is not None:
                same = self._expressions.EqualNullSafe(key, value)
                after = self._expressions.Or(after, self._expressions.And(same, found))
            found = after
        return found

    def _struct(self, fields: list[Any]) -> Any:
        named: list[Any] = []
        for i, field in enumerate(fields):
            named += [self._literal(f"f{i}"), field]
        return self._expressions.CreateNamedStruct(catalyst.to_seq(self._jvm, named))

    def _literal(self, value: Any) -> Any:
        return catalyst.module(
            self._jvm, "org.apache.spark.sql.catalyst.expressions.Literal"
        ).apply(value)

    def _row(self, packed: bytes) -> Any:
        row = self._expressions.UnsafeRow(len(self._structs))
        row.pointTo(packed, len(packed))
        return row

    def _sorted_sample(self, wanted: int) -> Any:
        """Return an array of Spark's rows, a random sample of the keys in their order."""
        named = [
            catalyst.alias(self._jvm, struct, f"k{i}") for i, struct in enumerate(self._structs)
        ]
        keys = catalyst.project(self._rows, named)
        order = [
            F.col(f"k{i}").desc() if descending else F.col(f"k{i}").asc()
            for i, descending in enumerate(self._descending)
        ]
        sample = keys.orderBy(F.rand()).limit(wanted).orderBy(*order)
        found: Any = sample
        return found._jdf.queryExecution().executedPlan().executeCollect()  # noqa: SLF001
