"""Spark schema to the Arrow schema of stored rows."""

import inspect

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema as Python workers see it, times in UTC, columns named c0, c1, …

    Columns go by position, so that repeated and odd names are no matter.
    """
    positional = StructType()
    for i, field in enumerate(schema):
        positional = positional.add(f"c{i}", field.dataType, field.nullable)
    if "timezone" in inspect.signature(to_arrow_schema).parameters:  # from PySpark 4.2 on
        return to_arrow_schema(positional, timezone="UTC")
    return to_arrow_schema(positional)
