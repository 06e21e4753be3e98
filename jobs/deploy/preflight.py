"""Checks before the first write: which storage root to use, and whether executors share it.

A local folder that the hosts do not share would lose data later. To find this out, the driver
writes a nonce, and tasks on the executors read it back. A host that gets no task is not checked.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.serialization import errors
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    InvalidInputError,
    OutcomeUnknownError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.log.layout import preflight_key
from durable_shuffle.shuffle.storage.contract import (
    MOST_BYTES,
    ByteRange,
    Bytes,
    Created,
    Exists,
    ObjectInfo,
    Storage,
)
from durable_shuffle.shuffle.storage.storage_clock import put_and_compare, try_and_compare

URL_CONF = "spark.durableShuffle.url"
LOCAL_DEFAULT = "durable-shuffle"
"""Folder in the working directory; only for masters whose tasks run in the driver's process."""
_CONNECT_TASKS = 16
"""How many tasks read the nonce if the number of cores is not known."""


def default_url(spark: SparkSession) -> str:
    """Return the url of a session that names none.

    Raises:
        InvalidInputError: the master is not `local*`.
    """
    if is_local(spark):
        return LOCAL_DEFAULT
    raise InvalidInputError(
        f"no url: pass it to DurableShuffle(spark, url) or set {URL_CONF}; only a local master has "
        "a default folder"
    )


def is_local(spark: SparkSession) -> bool:
    """Return True if tasks run on this host in the driver's own process."""
    if is_connect(spark):
        return False
    master = str(spark.sparkContext.master)
    return master.startswith("local") and not master.startswith("local-cluster")


def task_tries(master: str, configured: str | None) -> int:
    """Return how often Spark runs a failing task. Pure.

    A local session takes the number from its master only: three in `local[2,3]`, one in `local[2]`.

    Args:
        master: `spark.sparkContext.master`.
        configured: `spark.task.maxFailures`, None if it is not set.
    """
    local = re.fullmatch(r"local(\[\s*[^,\]]+(,\s*(?P<tries>\d+)\s*)?\])?", master)
    if local is None:
        return int(configured or 4)
    return int(local["tries"] or 1)


def check_worker_python(spark: SparkSession) -> None:
    """Refuse a local session whose tasks would run a Python without our dependencies.

    Spark uses `PYSPARK_PYTHON`, else the first `python3` in PATH. Without an activated environment
    that is not the driver's Python. If they differ, this starts the other Python to check it.

    Raises:
        InvalidInputError: names that Python and says how to choose another.
    """
    named = str(spark.sparkContext.pythonExec)
    python = shutil.which(named)
    if python is not None and Path(python).absolute().parent == Path(sys.executable).parent:
        return
    command = [python or named, "-c", "import fsspec, msgpack, numpy, pyarrow"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        reason = done.stderr.strip().rpartition("\n")[2] if done.returncode else ""
    except OSError as e:
        reason = str(e)
    if reason:
        raise InvalidInputError(
            f"Spark's tasks would run {python or named}, which lacks what durable-shuffle needs "
            f"({reason}): activate your environment, or set PYSPARK_PYTHON={sys.executable} "
            "before the session is created"
        )


def preflight(
    spark: SparkSession, storage: Storage, job: str, ids: IdSource, clock: Clock | None = None
) -> tuple[Storage, float]:
    """Check that executors share the storage.

    Returns:
        The storage that the driver must use, and by how many seconds the storage's clock is ahead
        of `clock`; 0 without `clock`. If a Spark Connect client does not share the executors'
        storage, the storage is a `RemoteStorage`.

    Raises:
        InvalidInputError: no permission to write, or an executor does not see what was written,
            or a local session's tasks would run another Python without our dependencies.
    """
    nonce = ids.new_id()
    key = preflight_key(job, nonce)
    if is_local(spark):
        check_worker_python(spark)
        return storage, try_and_compare(storage, key, clock)
    ways: list[Storage] = [storage]
    if is_connect(spark):
        ways.append(RemoteStorage(spark, storage))
    reason = ""
    for way in ways:
        try:
            ahead = put_and_compare(way, key, nonce.encode(), clock)
        except DurableShuffleError as e:
            if way is ways[-1]:
                raise
            reason = str(e)
            continue
        try:
            reason = _ask_executors(spark, storage, key, nonce)
        finally:
            way.delete([key])
        if not reason:
            return way, ahead
    raise InvalidInputError(
        f"executors do not share {storage.description} with the driver: {reason}; use a url that "
        "all hosts share"
    )


def _ask_executors(spark: SparkSession, storage: Storage, key: str, nonce: str) -> str:
    """Let tasks read the nonce; return what is wrong, "" if all of them read it."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            try:
                seen = storage.read(key).decode()
            except DurableShuffleError as e:
                seen = f"{type(e).__name__}: {e}"
            yield pa.RecordBatch.from_pydict({"host": [socket.gethostname()], "seen": [seen]})

    tasks = _CONNECT_TASKS if is_connect(spark) else spark.sparkContext.defaultParallelism * 2
    numbers = spark.range(0, max(2, tasks), 1, max(2, tasks))
    for row in numbers.mapInArrow(look, "host string, seen string").collect():
        if row["seen"] != nonce:
            return f"host {row['host']!r} found {row['seen']}"
    return ""


Binaries = list[bytes]
"""The result of a request, as binary values."""

_SCHEMA = "data array<binary>, error string, message string"


@dataclass(frozen=True)
class RemoteStorage:
    """A storage whose every call runs as a one-task Spark job.

    For Spark Connect clients that cannot reach the executors' storage. It is slow, one Spark job
    per request, but only control records pass through the client, never data.
    """

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
        data: Binaries = self._call(lambda s: [bytes(view) for view in s.read_ranges(wanted)])
        return [memoryview(part) for part in data]

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        data = b"".join(parts)

        def put(s: Storage) -> Binaries:
            s.put(key, [data])
            return []

        self._call(put, write=True)

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        def put(s: Storage) -> Binaries:
            answer = s.put_if_absent(key, data)
            return [] if isinstance(answer, Created) else [answer.existing]

        existing = self._call(put, write=True)
        return Exists(existing[0]) if existing else Created()

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        def look(s: Storage) -> Binaries:
            rows = [(i.key, i.size_bytes, i.modified_wall_seconds) for i in s.list(prefix)]
            return [json.dumps(rows).encode()]

        for key, size, modified in json.loads(self._call(look)[0]):
            yield ObjectInfo(key, size, modified)

    def delete(self, keys: Sequence[str]) -> None:
        wanted = [*keys]

        def delete(s: Storage) -> Binaries:
            s.delete(wanted)
            return []

        self._call(delete, write=True)

    def _call(self, verb: Callable[[Storage], Binaries], *, write: bool = False) -> Binaries:
        storage, texts = self.storage, [("error", pa.string()), ("message", pa.string())]
        schema = pa.schema([("data", pa.list_(pa.binary())), *texts])

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            data, error, message = None, None, None
            for _ in batches:  # Spark ends a worker that leaves rows unread
                pass
            try:
                data = verb(storage)
            except DurableShuffleError as e:
                error, message = type(e).__name__, str(e)
            values = {"data": [data], "error": [error], "message": [message]}
            yield pa.RecordBatch.from_pydict(values, schema)

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
