"""Driver side of a read from a folder: the JVM opens the files of a sealed stage itself.

No Python worker takes part. `decode/stored.java` reads what `facts` names and makes all checks of
`shuffle/read`. It is used for the plain storage in a folder only: any other storage has requests,
retries or layers that only Python knows.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from durable_shuffle.jobs.in_one_call import empty_rdd
from durable_shuffle.jobs.jvm_rows.compiled import compiled_in
from durable_shuffle.jobs.jvm_rows.decoder import decoder_references, decoder_text
from durable_shuffle.recovery.skew import Read
from durable_shuffle.serialization.frames import MAX_RECORD_BYTES
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.extent_table import MAX_EXTENTS
from durable_shuffle.shuffle.log.records import PASSTHROUGH, Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.seal.index import MAX_SLICE_BYTES
from durable_shuffle.shuffle.seal.suspect import note_of_jvm
from durable_shuffle.shuffle.storage.contract import MAX_WHOLE_BYTES, Storage
from durable_shuffle.shuffle.storage.local import LocalStorage, is_far
from durable_shuffle.shuffle.storage.retrying import RetryingStorage

Fact = str | int | float | bool | bytes

_GROUP = struct.Struct("<IIII")
_ALL_EXTENTS = (0, 2**31 - 1)


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """What Java must know to read a sealed stage in a folder."""

    facts: Mapping[str, Fact]
    """By the names that `decode/stored.java` and `decode/index.java` ask for."""
    tasks: int


def stored_files(
    stage: StageHandle,
    seal: Seal,
    settings: Settings,
    groups: Sequence[Read] | None = None,
) -> StoredFiles | None:
    """Return how the JVM reads a sealed stage itself; None if its storage is no plain folder.

    Args:
        groups: task number -> what the task reads; None if task k reads subpartition k.
    """
    root = folder_of(stage.storage)
    if root is None:
        return None
    facts: dict[str, Fact] = {
        "root": root,
        "prefix": stage.path.prefix,
        "index": stage.path.index_key(seal.index),
        "index_bytes": seal.index_bytes,
        "slice_bytes": MAX_SLICE_BYTES,
        "whole_bytes": MAX_WHOLE_BYTES,
        "most_extents": MAX_EXTENTS,
        "attempts": seal.attempts,
        "compaction": bytes.fromhex(seal.index),
        "incarnation": stage.path.incarnation,
        "partitions": stage.describe.partitions,
        "producers": seal.producers,
        "passthrough": stage.describe.partitioner == PASSTHROUGH,
        "groups": b"".join(
            _GROUP.pack(*group, *_ALL_EXTENTS[: 4 - len(group)]) for group in groups or ()
        ),
        "max_frame_bytes": settings.max_frame_bytes,
        "max_record_bytes": MAX_RECORD_BYTES,
        "call_seconds": settings.storage_call_seconds,
        "log": stage.path.log_prefix,
        "note": note_of_jvm(seal, RandomIds()),
    }
    return StoredFiles(facts, stage.describe.partitions if groups is None else len(groups))


def folder_of(storage: Storage) -> str | None:
    """Return the folder of the product's own storage in a folder, None for any other storage.

    Subclasses and other layers may do more than Java knows of, so they do not count. Where requests
    take long, readers are given an index before it is stored (`sealed_state`), and Java opens it.
    """
    if type(storage) is not RetryingStorage or is_far(storage):
        return None
    backend = storage.backend
    return backend.folder if type(backend) is LocalStorage else None


def rows_of_files(
    jvm: Any, session: SparkSession, files: StoredFiles, schema: StructType, stored: pa.Schema
) -> Any:
    """Return the JVM RDD of internal rows of a stored stage, one partition per task; for a function
    of `in_one_call`.

    Rows are as valid as those of `rows_of_blocks`. A failing task raises the errors of a Python
    worker: a PythonException whose text names our error and the object.

    Args:
        schema: of the rows. Decimals of up to 18 digits may be longs in it.
        stored: the Arrow schema of the frames.

    Raises:
        UncoveredTypeError: a column has a type that the Java code does not read.
        Py4JError: this Spark has other internals than expected.
    """

    def given(jvm: Any, context: Any) -> tuple[Any, list[Any]]:
        facts = getattr(jvm, "java.util.HashMap")()
        for name, value in files.facts.items():
            facts.put(name, value)
        references = [*decoder_references(jvm, schema, stored), facts]
        return empty_rdd(jvm, context, files.tasks), references

    return compiled_in(jvm, session, decoder_text(), given)
