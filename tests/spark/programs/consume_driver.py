"""A driver with consumers that stop on purpose: `consume_driver.py MASTER ROOT FOLDER`.

Producers add a line to FOLDER/producers. Every call of a consumer first adds its values to
FOLDER/<consumer>. `gated` stops until FOLDER/open exists: subpartition 0 in its second call;
subpartition 1 in its fifth call, after the other has stopped, with its worker's process id in
FOLDER/worker. `flaky` and `sums` fail once, at the third call of each subpartition.
Prints one JSON line: the report, and the published rows of each consumer.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle

ROWS, PARTITIONS, EVERY = 3000, 2, 100


def doubling(folder: str, consumer: str) -> Any:
    """A function that records its input, stops where it should, and doubles."""

    def process(batch: pa.RecordBatch) -> pa.RecordBatch:
        note(folder, consumer, batch)
        return doubled(batch)

    return process


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return v and twice v."""
    values = batch.column("v").to_pylist()
    return pa.RecordBatch.from_pydict({"v": values, "w": [2 * v for v in values]})


class Sums:
    """Keeps a sum and a count, and yields them at the end."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._total = self._count = 0

    def process(self, batch: pa.RecordBatch) -> None:
        """Add the values up."""
        note(self._folder, "sums", batch)
        self._total += sum(batch.column("v").to_pylist())
        self._count += batch.num_rows

    def snapshot(self) -> bytes:
        """Return both numbers as text."""
        return f"{self._total} {self._count}".encode()

    def restore(self, state: bytes) -> None:
        """Read both numbers from text."""
        self._total, self._count = map(int, state.split())

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield one row."""
        yield pa.RecordBatch.from_pydict({"v": [self._total], "w": [self._count]})


def note(folder: str, consumer: str, batch: pa.RecordBatch) -> None:
    """Record a call, then wait or fail where this consumer should."""
    import os
    from pathlib import Path

    from pyspark import TaskContext

    number, here = TaskContext.get().partitionId(), Path(folder)
    ledger = here / consumer / str(number)
    with ledger.open("a") as file:
        file.write(json.dumps(batch.column("v").to_pylist()) + "\n")
    calls = len(ledger.read_text().splitlines())
    if consumer == "gated" and not (here / "open").exists():
        if number == 0 and calls == 2:
            (here / "other").touch()
            wait_for(here / "open")
        if number == 1 and calls == 5:
            wait_for(here / "other")
            (here / "worker.new").write_text(str(os.getpid()))
            (here / "worker.new").rename(here / "worker")
            wait_for(here / "open")
    if consumer != "gated" and calls == 3:
        raise ValueError(f"broken on purpose in {consumer} {number}")


def wait_for(path: Path) -> None:
    """Return once the file exists."""
    import time

    deadline = time.monotonic() + 300
    while not path.exists():
        time.sleep(0.02)
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {path}")


def main(master: str, root: str, folder: str) -> None:
    """Store one stage, consume it three times, and print the results."""

    def produced(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        with Path(folder, "producers").open("a") as file:
            file.write("run\n")
        yield from batches

    for name in ("gated", "flaky", "sums"):
        Path(folder, name).mkdir(exist_ok=True)
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.local.dir", f"{folder}/spark-local")
        .getOrCreate()
    )
    shuffle = DurableShuffle(spark, root, job="tests", version="1")
    df = spark.range(0, ROWS, 1, 3).selectExpr("id % 7 as k", "id as v")
    stored = shuffle.repartition(df.mapInArrow(produced, "k long, v long"), PARTITIONS)
    users = {"gated": doubling(folder, "gated")}
    if master.startswith("local["):
        users |= {"flaky": doubling(folder, "flaky"), "sums": Sums(folder)}
    published = {}
    for name, process in users.items():
        out = shuffle.consume(
            stored, consumer=name, process=process, schema="v long, w long", checkpoint_every=EVERY
        )
        assert out is not None
        published[name] = sorted(tuple(row) for row in out.collect())
    print(json.dumps({**shuffle.report().to_dict(), "published": published}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
