"""Checks before the first write: which root is meant, and whether executors share it.

A `file:` root that several hosts do not share would lose data silently later; here it is found by
a nonce that the driver writes and one task per slot reads back.
"""

from pyspark.sql import SparkSession

from durable_shuffle.jobs.ship import is_connect
from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.shuffle.clock import IdSource
from durable_shuffle.shuffle.storage import Created, Storage

URL_CONF = "spark.durableShuffle.url"
LOCAL_DEFAULT = "durable-shuffle"
"""Folder beside the job, only for masters whose tasks run in this process."""


def default_url(spark: SparkSession) -> str:
    """Return the url that the session's settings name.

    Raises:
        InvalidInputError: none is set and the master is not `local*`.
    """
    found = spark.conf.get(URL_CONF, None)
    if found:
        return str(found)
    if is_local(spark):
        return LOCAL_DEFAULT
    raise InvalidInputError(
        f"no url: give DurableShuffle(spark, url) or set {URL_CONF}; a folder beside the job is "
        "the default only for master local"
    )


def is_local(spark: SparkSession) -> bool:
    """Return True if tasks run on this host in the driver's own process."""
    if is_connect(spark):
        return False
    master = spark.sparkContext.master
    return master.startswith("local") and not master.startswith("local-cluster")


def preflight(spark: SparkSession, storage: Storage, job: str, ids: IdSource) -> Storage:
    """Return the storage through which the driver works, once executors were seen to share it.

    Raises:
        InvalidInputError: no permission to write, the folder is a job's own, or an executor does
            not see what the driver wrote.
    """
    nonce = ids.new_id()
    key = f"{job}/preflight/{nonce}"
    if not isinstance(storage.put_if_absent(key, nonce.encode()), Created):
        raise InvalidInputError(f"the storage answered oddly to a first write: key={key!r}")
    try:
        if not is_local(spark):
            _ask_executors(spark, storage, key, nonce)
    finally:
        storage.delete([key])
    return storage


def _ask_executors(spark: SparkSession, storage: Storage, key: str, nonce: str) -> None:
    def look(_: object) -> list[tuple[str, str]]:
        import socket  # noqa: PLC0415 - runs on the executor

        try:
            seen = storage.read(key).decode()
        except DurableShuffleError as e:
            seen = f"{type(e).__name__}: {e}"
        return [(socket.gethostname(), seen)]

    slots = max(2, spark.sparkContext.defaultParallelism * 2)
    numbers = spark.sparkContext.parallelize(range(slots), slots)
    for host, seen in numbers.mapPartitions(look).collect():
        if seen != nonce:
            raise InvalidInputError(
                f"executor on host {host!r} does not see what the driver wrote to "
                f"{storage.description}: {seen}; use a url that all hosts share"
            )
