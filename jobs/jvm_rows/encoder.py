"""Driver side of the write: rows to pages of finished frames, inside the JVM."""

from dataclasses import dataclass
from typing import Any, Literal

from durable_shuffle.jobs.identity.jvm.calls import plan_of
from durable_shuffle.jobs.jvm_rows.compiled import bytes_of_rows, compiled, java_text
from durable_shuffle.jobs.spark_versions import ClassicFrame as DataFrame
from durable_shuffle.shuffle.write.segments import wanted_bytes

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
Placed = Literal["computed", "turns", "producer"]


@dataclass(frozen=True, slots=True)
class Encoding:
    """What the encoder needs to know about a stage."""

    kinds: str
    """Of the columns, see `column_kinds`."""
    partitions: int
    placed: Placed
    """Where a row's subpartition comes from: "computed", an expression over the row; "turns", the
    subpartitions in turn, from the producer's number on; "producer", the producer's number."""
    stage_id: str
    """32 hexadecimal digits; the stage's incarnation."""
    memory_bytes: int
    """Most bytes of rows that a task keeps before it makes a segment of them. A task takes up to
    half as much again for the frame at hand."""
    frame_bytes: int
    """Uncompressed size near which frames are cut."""
    max_frame_bytes: int
    """Longest frame body. A longer row takes several frames."""
    compression: str
    """"lz4", "zstd" or "none"."""


def encoder_text() -> str:
    """Return the Java source of the encoder."""
    return java_text("encode")


def pieces_of_rows(
    df: DataFrame, encoding: Encoding, place: Any | None = None, rows: Any | None = None
) -> Any:
    """Return the JVM's RDD of byte[], pieces of finished frames, with the partitions of `df`.

    `written.py` describes them. A piece has up to 256 KiB, but for the extents of a segment.

    Args:
        place: a Catalyst expression over the columns of `df` that gives a row's subpartition, an
            int; None if rows need none, or if an int behind the other columns has it.
        rows: Spark's RDD of the rows of `df`, if there is one.

    Raises:
        Py4JError: this Spark has other internals than expected.
    """
    session = df.sparkSession
    columns = len(df.columns) if place is None and encoding.placed == "computed" else 0

    def given(jvm: Any, _: Any, frame: Any, *made: Any) -> tuple[Any, list[Any]]:
        bound = place
        if place is not None:
            bind = getattr(jvm, f"{_EXPRESSIONS}BindReferences").bindReference
            attributes = getattr(jvm, f"{_EXPRESSIONS}package$AttributeSeq")
            bound = bind(place, attributes(plan_of(frame).output()), False)  # noqa: FBT003
        references = encoder_references(jvm, encoding, frame.schema(), columns, bound)
        return (made[0] if made else frame.queryExecution().toRdd()), references

    def finish(jvm: Any, pieces: Any, frame: Any, *_: Any) -> Any:
        conf = frame.sparkSession().sessionState().conf()
        return bytes_of_rows(jvm, pieces, conf)

    of = df._jdf, *([] if rows is None else [rows])  # noqa: SLF001
    return compiled(session, encoder_text(), given, *of, finish=finish)


def encoder_references(
    jvm: Any, encoding: Encoding, java_schema: Any, columns: int, place: Any | None = None
) -> list[Any]:
    """Return what the encoder's `generate` takes.

    Args:
        jvm: from `classes_of`, or what stands for it in one call.
        java_schema: of its input, an object of the JVM.
        columns: how many its input has; it counts if a column has the subpartition.
        place: see `pages_of_rows`; bound to the positions of the columns.
    """
    if place is None and encoding.placed == "computed":
        field = java_schema.apply(columns - 1)
        reference = getattr(jvm, f"{_EXPRESSIONS}BoundReference")
        place = reference(columns - 1, field.dataType(), field.nullable())
    return [
        encoding.kinds,
        encoding.partitions,
        encoding.placed,
        encoding.stage_id,
        encoding.memory_bytes,
        wanted_bytes(encoding.frame_bytes, encoding.max_frame_bytes),
        encoding.max_frame_bytes,
        encoding.compression,
        java_schema,
        place,
    ]
