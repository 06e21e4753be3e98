"""Which changes of a schema stored rows outlive."""

import pyarrow as pa
import pytest

from durable_shuffle.serialization.arrow_schemas import fit_batch, widened
from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError

STORED = pa.schema([("a", pa.int64()), ("b", pa.string())])


def test_new_nullable_columns_follow_the_stored_ones() -> None:
    """In whatever order they come; a stored column may be called not null."""
    wanted = pa.schema(
        [("c", pa.float64()), pa.field("b", pa.string(), nullable=False), ("a", pa.int64())]
    )
    assert widened(STORED, wanted, stage="s") == STORED.append(pa.field("c", pa.float64()))
    assert widened(STORED, STORED, stage="s") is not None
    assert widened(STORED, STORED, stage="s") == STORED


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ([("a", pa.int64())], "column 'b' is gone"),
        ([("a", pa.int32()), ("b", pa.string())], "column 'a' was int64 and is int32"),
        (
            [("a", pa.int64()), ("b", pa.string()), pa.field("c", pa.int8(), nullable=False)],
            "new column 'c' is not nullable",
        ),
    ],
)
def test_anything_else_is_refused_with_both_schemas(wanted: list[object], words: str) -> None:
    """The message names the reason and the two schemas."""
    with pytest.raises(IncompatibleError) as refused:
        widened(STORED, pa.schema(wanted), stage="orders")
    text = str(refused.value)
    assert words in text
    assert "'orders'" in text
    assert "stored schema (a int64, b string)" in text
    assert "found (a int" in text


def test_a_batch_fits_by_name() -> None:
    """Missing columns are null, others are left out; a column of another type is damage."""
    batch = pa.record_batch([[1, 2], ["x", "y"]], names=["a", "b"])
    wanted = pa.schema([("b", pa.string()), ("c", pa.float64())])
    assert fit_batch(batch, wanted).to_pylist() == [{"b": "x", "c": None}, {"b": "y", "c": None}]
    with pytest.raises(CorruptDataError, match="column 'a' of a stored batch is int64"):
        fit_batch(batch, pa.schema([("a", pa.string())]))


def test_a_name_of_two_columns_is_damage() -> None:
    """Neither of them is meant, and no value is null because of it."""
    schema = pa.schema([("a", pa.int64()), ("a", pa.int64())])
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], schema=schema)
    with pytest.raises(CorruptDataError, match=r"two columns.*'a'"):
        fit_batch(batch, pa.schema([("a", pa.int64())]))
