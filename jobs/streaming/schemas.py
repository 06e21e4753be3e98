"""Convert between Spark's schemas and the schemas of stored rows, by the user's column names."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from durable_shuffle.jobs.engine.arrow_schema import arrow_schema
from durable_shuffle.jobs.engine.checks import check_columns
from durable_shuffle.serialization.arrow_schemas import (
    fit_batch,
    later_schema,
    logical_batch,
    logical_schema,
    shown,
    storable_schema,
)
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.log.stage import StageHandle


def written_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which rows are stored, with the user's column names.

    Raises:
        InvalidInputError: a column cannot be stored, two columns have the same name, or there is
            no column.
    """
    if not schema.fields:
        raise InvalidInputError(
            "a DataFrame without columns cannot be written: Spark hands no rows of it to a data "
            "source; give it a column, as select(lit(1)) does"
        )
    check_columns(schema)
    names = schema.names
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidInputError(f"two columns are named {twice[0]!r}: give them names of their own")
    return _under_names(storable_schema(arrow_schema(schema)), names)


def expected_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which Spark takes rows of a data source."""
    return _under_names(arrow_schema(schema), schema.names)


def _under_names(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema under the user's names; columns that were added later keep theirs."""
    later = schema.names[len(names) :]
    return pa.schema([f.with_name(n) for f, n in zip(schema, [*names, *later], strict=True)])


def stored_schema(stage: StageHandle, message: bytes) -> pa.Schema:
    """Return the logical schema of stored rows under the user's column names.

    Args:
        message: the schema message of the rows; the stage's, or a later one.

    Raises:
        CorruptDataError: DESCRIBE does not name the stage's columns, or `message` is of others.
    """
    if stage.describe.codec != "arrow":
        raise InvalidInputError(
            f"a stage of Python objects has no columns: {stage.path.prefix!r}; read it with an RDD "
            "stage"
        )
    stored = later_schema(message, stage.schema, name=f"rows of {stage.path.prefix!r}")
    return _under_names(logical_schema(stored), stage.describe.columns)


def spark_schema(schema: pa.Schema, columns: Sequence[str]) -> StructType:
    """Return the Spark schema of stored rows; every column is nullable.

    Args:
        columns: the wanted columns in this order; empty for all.

    Raises:
        InvalidInputError: a wanted column does not exist, or the rows have no columns.
    """
    if not schema.names:
        raise InvalidInputError(
            "the rows of this stage have no columns, and Spark takes no rows without columns from "
            "a data source: read them by the call that stored them"
        )
    for name in columns:
        if name not in schema.names:
            raise InvalidInputError(
                f"option 'columns': no column {name!r}; stored are {', '.join(schema.names)}"
            )
    fields = from_arrow_schema(schema)
    result = StructType()
    for name in columns or fields.names:
        result = result.add(name, fields[name].dataType, nullable=True)
    return result


def check_readable(stored: pa.Schema, wanted: StructType, stage: str) -> None:
    """Refuse a user's schema if stored rows cannot be read with it.

    Columns may be left out and may have any order. Nullable columns that are not stored are null.

    Raises:
        IncompatibleError: a column has another type, a missing column is not nullable, or no column
            is stored; names both schemas.
    """
    asked = expected_schema(wanted)
    types = dict(zip(stored.names, storable_schema(stored).types, strict=True))
    plain = storable_schema(asked)
    wrong = [f.name for f in plain if f.name in types and types[f.name] != f.type]
    absent = [f.name for f in asked if f.name not in types and not f.nullable]
    if wrong or absent or not any(name in types for name in asked.names):
        raise IncompatibleError(
            f"stage {stage!r} cannot be read in the schema asked for, see column "
            f"{(wrong or absent or asked.names or ['none'])[0]!r}: stored ({shown(stored)}), asked "
            f"for ({shown(asked)})"
        )


def as_spark(
    stage: StageHandle, batches: Iterator[pa.RecordBatch], schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield stored rows in the columns and types that Spark asks for."""
    expected = expected_schema(schema)
    plain = storable_schema(expected)
    names = stage.describe.columns
    for batch in batches:
        logical = logical_batch(batch, batch.schema)
        later = logical.schema.names[len(names) :]
        fitted = fit_batch(logical.rename_columns([*names, *later]), plain)
        if expected != plain:
            columns = [c.cast(f.type) for c, f in zip(fitted.columns, expected, strict=True)]
            fitted = pa.RecordBatch.from_arrays(columns, schema=expected)
        yield fitted
