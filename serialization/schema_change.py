"""Schema changes of a stage: nullable columns may be added, nothing else may change. Pure."""

import pyarrow as pa

from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError


def widened(stored: pa.Schema, wanted: pa.Schema, *, stage: str) -> pa.Schema:
    """Return the schema in which rows of `wanted` are stored after rows of `stored`.

    Stored columns keep their positions; new columns follow. The order of columns in `wanted` does
    not matter, and a stored column keeps its own nullability.

    Raises:
        IncompatibleError: a stored column is missing or has another type, or a new column is not
            nullable; names both schemas.
    """
    names = {field.name: field for field in wanted}
    reasons = [
        f"column {field.name!r} is gone"
        if field.name not in names
        else f"column {field.name!r} was {field.type} and is {names[field.name].type}"
        for field in stored
        if field.name not in names or names[field.name].type != field.type
    ]
    known = set(stored.names)
    added = [field for field in wanted if field.name not in known]
    reasons += [
        f"new column {field.name!r} is not nullable" for field in added if not field.nullable
    ]
    if reasons:
        raise IncompatibleError(
            f"rows do not fit the stage {stage!r}, {'; '.join(reasons)}: only nullable columns can "
            f"be added; stored schema ({shown(stored)}), found ({shown(wanted)})"
        )
    return pa.schema([*stored, *added], metadata=stored.metadata)


def fit_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of `schema`, by name: missing ones are null, others are left out.

    Raises:
        CorruptDataError: a column has another type.
    """
    columns = []
    for field in schema:
        at = batch.schema.get_field_index(field.name)
        if at < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(at)
        if column.type != field.type:
            raise CorruptDataError(
                f"column {field.name!r} of a stored batch is {column.type}, expected {field.type}"
            )
        columns.append(column)
    if not columns:
        return batch.select([])
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def shown(schema: pa.Schema) -> str:
    """Return a schema in one line, for people."""
    return ", ".join(
        f"{field.name} {field.type}{'' if field.nullable else ' not null'}" for field in schema
    )
