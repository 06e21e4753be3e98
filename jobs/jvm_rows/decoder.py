"""Driver side of the read: frames to Spark's internal rows, inside the JVM."""

from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.jvm_rows.compiled import compiled, java_schema, java_text
from durable_shuffle.jobs.jvm_rows.kinds import column_kinds
from durable_shuffle.serialization.arrow_checks import MAX_INFLATED_BYTES


def decoder_text() -> str:
    """Return the Java source of the decoder."""
    return java_text("decode")


def rows_of_blocks(
    session: SparkSession, blocks: Any, schema: StructType, stored: pa.Schema
) -> Any:
    """Return the JVM RDD of internal rows that are in the blocks of each partition.

    A row is only valid until `hasNext` is called for the next one, as in Spark's columnar readers:
    copy it, or project it to a binary row, as `LogicalRDD` does.

    Args:
        blocks: JVM RDD of byte[]; each partition has the blocks of one `blocks_of`.
        schema: of the rows. Decimals of up to 18 digits may be longs in it.
        stored: the Arrow schema of the frames.

    Raises:
        UncoveredTypeError: a column has a type that the Java code does not read.
        Py4JError: this Spark has other internals than expected.
    """

    def given(jvm: Any, _: Any, blocks: Any) -> tuple[Any, list[Any]]:
        return blocks, decoder_references(jvm, schema, stored)

    return compiled(session, decoder_text(), given, blocks)


def decoder_references(jvm: Any, schema: StructType, stored: pa.Schema) -> list[Any]:
    """Return what the decoder's `generate` takes first, wherever frames come from.

    Args:
        jvm: from `classes_of`, or what stands for it in one call.

    Raises:
        UncoveredTypeError: a column has a type that the Java code does not read.
    """
    return [column_kinds(schema, stored), java_schema(jvm, schema), MAX_INFLATED_BYTES]
