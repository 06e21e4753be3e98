"""Range exchanges: bounds from a sample, in a form that DESCRIBE can hold, and partition ids.

Strategy: consecutive sort columns of the same direction become one struct, because Spark compares
structs field by field, nulls first. If a column's nulls belong at the other end, a field before it
says whether it is null. A bound is a row of these structs in Spark's own binary form. The partition
id of a row comes from a binary search, written as nested IFs: rows above bound i-1 and up to bound
i, inclusive, go to partition i. Bounds decide how even the partitions are, never the order of rows.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any

from durable_shuffle.jobs.engine import catalyst
from durable_shuffle.jobs.identity.jvm.calls import class_name, items, module, simple_name, to_seq
from durable_shuffle.jobs.in_one_call import in_one_call, standing_for
from durable_shuffle.jobs.java import classes_of
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
        self._jvm: Any = classes_of(rows.sparkSession)
        self._descending: list[bool] = []
        fields: list[list[tuple[Any, bool]]] = []
        for order in items(partitioning.ordering()):
            descending = simple_name(class_name(order.direction())) == "Descending"
            if not fields or descending != self._descending[-1]:
                fields.append([])
                self._descending.append(descending)
            nulls_first = simple_name(class_name(order.nullOrdering())) == "NullsFirst"
            fields[-1].append((order.child(), nulls_first == descending))

        def made(jvm: Any) -> tuple[Any, ...]:
            return tuple(_struct(jvm, of_one) for of_one in fields)

        self._structs = in_one_call(self._jvm, made, fetch=False)

    def bounds(self, ranges: int) -> str:
        """Return the upper bounds of all ranges but the last, as JSON; runs a Spark job.

        A small or uneven sample may give fewer ranges; `count_of` says how many.

        Args:
            ranges: from 1; with 1 nothing runs.
        """
        if ranges == 1:
            return json.dumps([])
        rows, count = self._sorted_sample(min(ranges * _SAMPLES_PER_PARTITION, _SAMPLE_ROWS))
        chosen = sorted({count * (i + 1) // ranges - 1 for i in range(ranges - 1)} - {-1})

        def packed(jvm: Any, rows: Any) -> tuple[Any, ...]:
            as_text = getattr(jvm, "java.util.Base64").getEncoder().encodeToString
            return tuple(as_text(rows[i].getBytes()) for i in chosen)

        return json.dumps(in_one_call(self._jvm, packed, rows))

    def partition_id(self, bounds: str) -> Any:
        """Return the Catalyst expression of a row's range, from 0 to the number of bounds.

        Raises:
            CorruptDataError: the bounds are not what `bounds` returned.
        """
        packed = _packed(bounds)

        def searched(jvm: Any) -> Any:
            return self._search(jvm, [self._row(jvm, text) for text in packed], 0, len(packed))

        return in_one_call(self._jvm, searched)

    def _search(self, jvm: Any, bounds: list[Any], low: int, high: int) -> Any:
        if low == high:
            return _literal(jvm, low)
        middle = (low + high) // 2
        above = self._search(jvm, bounds, middle + 1, high)
        below = self._search(jvm, bounds, low, middle)
        return _expressions(jvm).If(self._after(jvm, bounds[middle]), above, below)

    def _after(self, jvm: Any, bound: Any) -> Any:
        """Return the expression that is true if a row comes after a bound, struct by struct."""
        expressions, later = _expressions(jvm), None
        for i in reversed(range(len(self._structs))):
            key = standing_for(jvm, self._structs[i])
            kind = key.dataType()
            value = expressions.Literal(bound.getStruct(i, kind.size()), kind)
            compare = expressions.LessThan if self._descending[i] else expressions.GreaterThan
            after = compare(key, value)
            if later is not None:
                same = expressions.EqualNullSafe(key, value)
                after = expressions.Or(after, expressions.And(same, later))
            later = after
        return later

    def _row(self, jvm: Any, packed: bytes) -> Any:
        row = _expressions(jvm).UnsafeRow(len(self._structs))
        row.pointTo(packed, len(packed))
        return row

    def _sorted_sample(self, wanted: int) -> tuple[Any, int]:
        """Return a random sample of the keys, sorted, as a JVM array of internal rows, and their
        number."""

        def sampled(jvm: Any, java_session: Any, frame: Any) -> tuple[Any, Any]:
            structs = [standing_for(jvm, struct) for struct in self._structs]
            keys = [catalyst.alias(jvm, one, f"k{i}") for i, one in enumerate(structs)]
            frame = catalyst.projected(jvm, java_session, frame, to_seq(jvm, keys))
            functions = module(jvm, "org.apache.spark.sql.functions")
            columns = [functions.col(f"k{i}") for i in range(len(keys))]
            each = zip(columns, self._descending, strict=True)
            order = [column.desc() if descending else column.asc() for column, descending in each]
            sample = frame.sort(to_seq(jvm, [functions.rand()])).limit(wanted)
            sorted_rows = sample.sort(to_seq(jvm, order))
            rows = sorted_rows.queryExecution().executedPlan().executeCollect()
            return rows, getattr(jvm, "java.lang.reflect.Array").getLength(rows)

        given = self._rows.sparkSession._jsparkSession, self._rows._jdf  # noqa: SLF001
        rows, count = in_one_call(self._jvm, sampled, *given)
        return rows, count


def _expressions(jvm: Any) -> Any:
    return getattr(jvm, "org.apache.spark.sql.catalyst.expressions")


def _literal(jvm: Any, value: Any) -> Any:
    return module(jvm, "org.apache.spark.sql.catalyst.expressions.Literal").apply(value)


def _struct(jvm: Any, fields: Sequence[tuple[Any, bool]]) -> Any:
    """Return an expression of a struct.

    Args:
        fields: expressions, each with whether a field before it says that it is null.
    """
    values: list[Any] = []
    for field, is_behind in fields:
        value = standing_for(jvm, field)
        values += [_expressions(jvm).IsNull(value), value] if is_behind else [value]
    named = [one for i, value in enumerate(values) for one in (_literal(jvm, f"f{i}"), value)]
    return _expressions(jvm).CreateNamedStruct(to_seq(jvm, named))
