"""Ask a Spark Connect server that is not Spark's for what stages need: `other_server.py NAME`.

It runs in an environment with that server, which `scripts/compatibility.py` makes, and prints JSON:
what the server is, what it runs, what is missing, and how the library answers.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import IncompatibleError

KNOWN_MISSING = {"pysail": {"addArtifacts", "TaskContext", "repartitionById"}}
"""What a server lacked when it was last tried. With another answer this script fails, so that
somebody looks again."""


@contextmanager
def pysail() -> Iterator[str]:
    """Run Sail; yield its address."""
    from pysail.spark import SparkConnectServer

    server = SparkConnectServer(ip="127.0.0.1", port=0)
    server.start(background=True)
    try:
        yield f"sc://127.0.0.1:{server.listening_address[1]}"
    finally:
        server.stop()


SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {"pysail": pysail}


def in_arrow(spark: SparkSession) -> bool:
    return (
        len(spark.range(0, 8, 1, 4).mapInArrow(lambda batches: batches, "id long").collect()) == 8
    )


def in_pandas(spark: SparkSession) -> bool:
    found = spark.range(0, 8, 1, 4).mapInPandas(lambda frames: frames, "id long")
    return len(found.collect()) == 8


def empty_partitions(spark: SparkSession) -> bool:
    """Whether a function is called for a partition without rows, too."""

    def one(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"rows": [sum(b.num_rows for b in batches)]})

    return len(spark.range(0, 8, 1, 4).where("id < 2").mapInArrow(one, "rows long").collect()) == 4


def task_context(spark: SparkSession) -> bool:
    """Whether a task knows the number of its partition."""

    def number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        context = TaskContext.get()
        yield pa.RecordBatch.from_pydict({"p": [-1 if context is None else context.partitionId()]})

    found = spark.range(0, 8, 1, 4).mapInArrow(number, "p long").collect()
    return sorted(row[0] for row in found) == [0, 1, 2, 3]


def artifacts(spark: SparkSession) -> bool:
    """Whether a client can send code to the tasks."""
    with tempfile.TemporaryDirectory() as folder:
        module = Path(folder, "sent_to_the_server.py")
        module.write_text("ANSWER = 42\n")
        spark.addArtifacts(str(module), pyfile=True)

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        import sent_to_the_server  # type: ignore[import-not-found]

        yield pa.RecordBatch.from_pydict({"answer": [sent_to_the_server.ANSWER]})

    return spark.range(0, 1, 1, 1).mapInArrow(ask, "answer long").collect()[0][0] == 42  # type: ignore[no-any-return]


def by_id(spark: SparkSession) -> bool:
    """Whether rows go to the partition that a column names."""
    frame = spark.range(0, 8, 1, 4).repartitionById(4, (F.col("id") % 4).cast("int"))
    found = frame.select("id", F.spark_partition_id()).collect()
    return all(row[0] % 4 == row[1] for row in found)


NEEDS: dict[str, Callable[[SparkSession], bool]] = {
    "mapInArrow": in_arrow,
    "mapInPandas": in_pandas,
    "tasks without rows": empty_partitions,
    "TaskContext": task_context,
    "addArtifacts": artifacts,
    "repartitionById": by_id,
}


def has(need: Callable[[SparkSession], bool], spark: SparkSession) -> bool:
    """Whether the server does something, and does it right."""
    try:
        return need(spark)
    except PySparkException:
        return False


def stages(spark: SparkSession) -> str:
    """Return how stages end: "run", or the error that refuses them; nothing may be left of it."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with DurableShuffle(spark, folder, job="tried") as shuffle:
                frame = spark.range(0, 8, 1, 4)
                stored = shuffle.checkpoint(frame), shuffle.repartition(frame, 2, "id")
                assert all(df.count() == 8 for df in stored)
        except IncompatibleError as error:
            assert not list(Path(folder).iterdir()), "a refused call has written something"
            return str(error)
    return "run"


def main() -> int:
    """Ask; exit status 1 if the answers are not those that are known."""
    name = sys.argv[1]
    with SERVERS[name]() as address:
        spark = SparkSession.builder.remote(address).getOrCreate()
        runs = {need: has(asked, spark) for need, asked in NEEDS.items()}
        missing = {need for need, does in runs.items() if not does}
        answer = stages(spark)
        client = spark.version
        spark.stop()
    found = {
        "server": f"`{name}` {version(name)}",
        "client": f"PySpark {client}",
        "runs": [need for need in NEEDS if need not in missing],
        "missing": [need for need in NEEDS if need in missing],
        "stages": answer,
    }
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
    as_known = missing == KNOWN_MISSING[name]
    named = any(need in answer for need in missing)
    return int(not as_known or (bool(missing) and not named))


if __name__ == "__main__":
    raise SystemExit(main())
