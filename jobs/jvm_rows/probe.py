"""Finds out, once per application, whether rows can stay in the JVM. It never guesses.

The driver compiles both texts, encodes two rows in Java, reads the frame with the Python decoder,
and has Java decode it again. No Spark job runs. Anything unexpected is a reason to refuse, and then
rows go through Python workers.
"""

import base64
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS
from durable_shuffle.jobs.jvm_rows.blocks import blocks_of
from durable_shuffle.jobs.jvm_rows.compiled import (
    check_internals,
    generic_row,
    java_schema,
    run_here,
)
from durable_shuffle.jobs.jvm_rows.decoder import (
    decoder_references,
    decoder_text,
)
from durable_shuffle.jobs.jvm_rows.encoder import (
    Encoding,
    encoder_references,
    encoder_text,
)
from durable_shuffle.jobs.jvm_rows.written import JvmSegments
from durable_shuffle.serialization.arrow_codec import decode_frame
from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.serialization.frame_decoder import NEED_DATA, FrameDecoder
from durable_shuffle.serialization.frames import Frame

_VERSIONS = ("3.5.", "4.0.", "4.1.", "4.2.", "4.3.")
_STAGE = "0" * 32
_ROWS = ((1 << 40, "a"), (-(1 << 40), "é"))
_PIECES = 3
"""What the encoder yields for them."""
_FIELDS = [StructField("number", LongType()), StructField("text", StringType())]
_STORED = pa.schema([("number", pa.int64()), ("text", pa.string())])
_MIB = 1 << 20


_LOCK = threading.Lock()
_ANSWERS: WeakKeyDictionary[SparkContext, Future[str]] = WeakKeyDictionary()
"""What `probe` found or is finding out, per application."""


def start_probe(spark: SparkSession) -> Future[str]:
    """Find out beside what the caller does next; harmless to repeat."""
    context = spark.sparkContext
    with _LOCK:
        if context not in _ANSWERS:
            pool = ThreadPoolExecutor(1, thread_name_prefix="durable-probe")
            _ANSWERS[context] = pool.submit(probe, spark)
            pool.shutdown(wait=False)
        return _ANSWERS[context]


def why_refused(spark: SparkSession) -> str:
    """Return why this classic session cannot run the Java code, in one line; "" if it can.

    Takes about a second, once per application.
    """
    return start_probe(spark).result()


def probe(spark: SparkSession) -> str:
    """Return why this session cannot run the Java code, in one line; "" if it can."""
    version = str(spark.version)
    if not version.startswith(_VERSIONS):
        return f"Spark {version} is not known: expected 3.5 or 4.0 to 4.3"
    try:
        check_internals(spark, encoder_text())
        _check_round_trip(spark)
    except (*JVM_ERRORS, DurableShuffleError, AttributeError, TypeError, ValueError) as error:
        first = str(error).strip().splitlines()[:1]
        return f"this Spark differs: {type(error).__name__}: {' '.join(first):.300}"
    return ""


def _check_round_trip(spark: SparkSession) -> None:
    """Encode in Java, decode in Python, decode in Java.

    Raises:
        ValueError: the rows differ.
    """
    frames = list(_encoded(spark))
    found = [
        tuple(row.values())
        for frame in frames
        for row in decode_frame(frame, _STORED, position=0).to_pylist()
    ]
    if found != list(_ROWS):
        raise ValueError(f"rows from the encoder: expected {_ROWS}, found {found}")
    blocks = list(blocks_of(iter(frames)))

    def given(jvm: Any) -> tuple[list[Any], list[Any]]:
        return decoder_references(jvm, StructType(_FIELDS), _STORED), blocks

    def read(_: Any, row: Callable[..., Any]) -> tuple[Any, Any]:
        return row("getLong", 0), row("getUTF8String", 1).toString()

    again = list(map(tuple, run_here(spark, decoder_text(), given, read, len(_ROWS))))
    if again != list(_ROWS):
        raise ValueError(f"rows from the decoder: expected {_ROWS}, found {again}")


def _encoded(spark: SparkSession) -> Iterator[Frame]:
    """Yield the frames that Java makes of the rows."""
    encoding = Encoding("8s", 1, "computed", _STAGE, _MIB, _MIB, _MIB, "lz4")

    def given(jvm: Any) -> tuple[list[Any], list[Any]]:
        schema = java_schema(jvm, StructType([*_FIELDS, StructField("id", IntegerType())]))
        references = encoder_references(jvm, encoding, schema, len(_FIELDS) + 1)
        return references, [generic_row(jvm, [*row, 0]) for row in _ROWS]

    def read(jvm: Any, row: Callable[..., Any]) -> tuple[Any]:
        as_text = getattr(jvm, "java.util.Base64").getEncoder().encodeToString
        return (as_text(row("getBinary", 0)),)

    rows = run_here(spark, encoder_text(), given, read, _PIECES)
    pieces = (base64.b64decode(text) for (text,) in rows)
    for segment, _ in JvmSegments(pieces, 0, _STAGE, 1, _MIB):
        decoder = FrameDecoder(lambda ordinal: frame_seed(_STAGE, 0, 0, ordinal))
        for part in segment.parts:
            decoder.feed(part)
        while (frame := decoder.next_record()) is not NEED_DATA:
            yield frame
