"""A storage whose every call runs as a one-task Spark job.

For Spark Connect clients that cannot reach the executors' storage. It is slow, one Spark job per
request, but only control records pass through the client, never data.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from durable_shuffle.serialization import errors
from durable_shuffle.serialization.errors import DurableShuffleError, OutcomeUnknownError
from durable_shuffle.shuffle.storage.contract import (
    MOST_BYTES,
    ByteRange,
    Bytes,
    Created,
    Exists,
    ObjectInfo,
    Storage,
)

Answers = list[bytes]
"""The result of a request, as binary values."""

_SCHEMA = "data array<binary>, error string, message string"


@dataclass(frozen=True)
class RemoteStorage:
    """Implements the storage contract with tasks."""

    spark: SparkSession
    storage: Storage

    @property
    def description(self) -> str:
        return self.storage.description

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        return self._call(lambda s: [s.read(key, most_bytes)])[0]

    def read_range(self, key: str, start: int, length: int) -> memoryview:
        return memoryview(self._call(lambda s: [bytes(s.read_range(key, start, length))])[0])

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        wanted = list(ranges)
        found: Answers = self._call(lambda s: [bytes(view) for view in s.read_ranges(wanted)])
        return [memoryview(data) for data in found]

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        data = b"".join(parts)

        def put(s: Storage) -> Answers:
            s.put(key, [data])
            return []

        self._call(put, write=True)

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        def put(s: Storage) -> Answers:
            answer = s.put_if_absent(key, data)
            return [] if isinstance(answer, Created) else [answer.existing]

        found = self._call(put, write=True)
        return Exists(found[0]) if found else Created()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        def look(s: Storage) -> Answers:
            rows = [(i.key, i.size_bytes, i.modified_wall_seconds) for i in s.list(prefix)]
            return [json.dumps(rows).encode()]

        for key, size, modified in json.loads(self._call(look)[0]):
            yield ObjectInfo(key, size, modified)

    def delete(self, keys: Sequence[str]) -> None:
        wanted = [*keys]

        def delete(s: Storage) -> Answers:
            s.delete(wanted)
            return []

        self._call(delete, write=True)

    def _call(self, verb: Callable[[Storage], Answers], *, write: bool = False) -> Answers:
        storage = self.storage

        def run(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            data, error, message = None, None, None
            try:
                data = verb(storage)
            except DurableShuffleError as e:
                error, message = type(e).__name__, str(e)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([data], pa.list_(pa.binary())),
                    pa.array([error], pa.string()),
                    pa.array([message], pa.string()),
                ],
                names=["data", "error", "message"],
            )

        try:
            (row,) = self.spark.range(0, 1, 1, 1).mapInArrow(run, _SCHEMA).collect()
        except Exception as error:
            if not write:
                raise
            raise OutcomeUnknownError(
                f"{self.description}: the task that was to write ended without an answer "
                f"({type(error).__name__}); read it back before anything else is done"
            ) from error
        answer = row.asDict()
        if answer["error"] is not None:
            raise getattr(errors, answer["error"])(answer["message"])
        return [bytes(item) for item in answer["data"]]
