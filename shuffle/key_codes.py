"""Numbers for the distinct keys of a stream of batches: equal keys, equal number, from 0 on.

Numbers are given in the order in which keys are first seen, and stay: rows sorted by them stand in
groups. Keys are equal as Spark's `GROUP BY` takes it: null equals null, NaN equals NaN, -0.0 equals
0.0. The distinct keys are held in memory, the rows are not.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from durable_shuffle.serialization.errors import InvalidInputError


def check_group_key(name: str, kind: pa.DataType) -> None:
    """Refuse a type by which rows cannot be grouped here.

    Raises:
        InvalidInputError: names the column and its type.
    """
    if pt.is_struct(kind):
        for i in range(kind.num_fields):
            check_group_key(f"{name}.{kind.field(i).name}", kind.field(i).type)
    elif pt.is_nested(kind):
        raise InvalidInputError(
            f"rows cannot be grouped by column {name!r} of type {kind}: cast it to a string first"
        )


class KeyCodes:
    """The keys seen so far. Not thread-safe."""

    def __init__(self, columns: Sequence[str], schema: pa.Schema) -> None:
        """
        Args:
            columns: names of the key columns, at least one.
            schema: of the batches.

        Raises:
            InvalidInputError: a key column of a type that cannot be grouped by.
        """
        for name in columns:
            check_group_key(name, schema.field(name).type)
        self._columns = list(columns)
        fields = [schema.field(name) for name in columns]
        self._known = pa.RecordBatch.from_arrays(
            [pa.nulls(0, field.type) for field in fields], schema=pa.schema(fields)
        )

    def key(self, code: int) -> tuple[pa.Scalar, ...]:
        """Return the key of a number, one scalar per column."""
        return tuple(column[code] for column in self._known.columns)

    def codes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
        """Return the number of each row's key; new keys get new numbers."""
        known = self._known.num_rows
        keys = batch.select(self._columns)
        joined = pa.concat_batches([self._known, keys])
        codes, count = _encode(joined.columns)
        if count > known:
            # first occurrences, in order: a number is new where it is the largest so far
            tops = np.maximum.accumulate(codes)
            firsts = np.flatnonzero(np.diff(tops, prepend=-1))
            self._known = joined.take(pa.array(firsts))
        return codes[known:]


def _encode(columns: Sequence[pa.Array]) -> tuple[npt.NDArray[np.int32], int]:
    """Return codes by first occurrence, and how many there are."""
    codes, count = _codes_of(columns[0])
    for column in columns[1:]:
        more, more_count = _codes_of(column)
        wide = codes.astype(np.int64) * max(1, more_count) + more
        codes, count = _codes_of(pa.array(wide))
    return codes, count


def _codes_of(column: pa.Array) -> tuple[npt.NDArray[np.int32], int]:
    if pt.is_struct(column.type):
        fields = [column.field(i) for i in range(column.type.num_fields)]
        if column.null_count:
            valid = column.is_valid()
            nothing = [pa.scalar(None, field.type) for field in fields]
            fields = [pc.if_else(valid, f, n) for f, n in zip(fields, nothing, strict=True)]
        return _encode([column.is_valid(), *fields])
    if pt.is_floating(column.type):
        column = pc.add(column, pa.scalar(0.0, column.type))  # turns -0.0 into 0.0
    encoded = column.dictionary_encode(null_encoding="encode")
    codes: npt.NDArray[np.int32] = encoded.indices.to_numpy(zero_copy_only=False)
    return codes, len(encoded.dictionary)
