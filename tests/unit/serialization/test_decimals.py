"""Decimals stored as unscaled longs, against Python's own decimals."""

from decimal import Decimal

import pyarrow as pa
import pytest

from durable_shuffle.serialization.arrow_schemas import (
    logical_batch,
    logical_schema,
    unscaled_field,
)
from durable_shuffle.serialization.errors import CorruptDataError

MONEY = pa.field("c0", pa.decimal128(15, 2))


def test_longs_become_the_decimals_they_stand_for() -> None:
    """Signs, nulls and the largest values come back, also from a slice."""
    stored = pa.schema([unscaled_field(MONEY), pa.field("c1", pa.string())])
    longs = [None, 0, 1, -1, 123456, 999_999_999_999_999, -999_999_999_999_999, None]
    names = pa.array([str(i) for i in range(len(longs))])
    batch = pa.RecordBatch.from_arrays([pa.array(longs, pa.int64()), names], schema=stored)
    expected = [None if v is None else Decimal(v).scaleb(-2) for v in longs]
    assert logical_batch(batch, stored).column(0).to_pylist() == expected
    part = logical_batch(batch.slice(3, 5), stored)
    assert part.column(0).to_pylist() == expected[3:]
    assert part.schema.field(0).type == pa.decimal128(15, 2)


def test_columns_without_the_mark_stay() -> None:
    """A plain long is a long."""
    plain = pa.schema([pa.field("c0", pa.int64())])
    batch = pa.RecordBatch.from_pydict({"c0": [1, 2]}, schema=plain)
    assert logical_batch(batch, plain).equals(batch)


@pytest.mark.parametrize("text", [b"", b"15", b"x,2", b"15,2,1", b"39,2", b"0,0", b"3,4"])
def test_a_damaged_mark_is_corruption(text: bytes) -> None:
    """Metadata that says nothing sensible is an error, never a guess."""
    field = pa.field("c0", pa.int64(), True, {b"unscaled_decimal": text})
    with pytest.raises(CorruptDataError, match="c0"):
        logical_schema(pa.schema([field]))
