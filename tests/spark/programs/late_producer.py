"""A producer that outlived its driver: `late_producer.py ROOT STAGE PRODUCER FIRST LAST`.

Writes the rows (id % 7, id) of FIRST to LAST, exclusive. Before it sends its COMMIT, it waits for a
line. No Spark: one worker process is all that remains of a dead driver. Prints JSON lines:
{"at": "commit"}, then the outcome.
"""

import json
import sys

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.rows.spark_hash import spark_hash
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.write.producer import run_producer


class GatedStorage(LocalStorage):
    """Waits for a line on stdin before it creates anything in a producer's log."""

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        """Report the position, wait, then create."""
        if "/producers/" in key:
            print(json.dumps({"at": "commit"}), flush=True)
            sys.stdin.readline()
        return super().put_if_absent(key, data)


def main(root: str, folder: str, producer: int, first: int, last: int) -> None:
    """Run one producer attempt."""
    name, fingerprint, incarnation = folder.rsplit("-", 2)
    stage = open_stage(GatedStorage(root), StagePath("tests", name, fingerprint, incarnation))
    values = list(range(first, last))
    batch = pa.record_batch(
        [pa.array([v % 7 for v in values]), pa.array(values)], names=["c0", "c1"]
    )
    ids = np.remainder(spark_hash([batch.column(0)]), stage.describe.partitions).astype(np.uint16)
    try:
        result = run_producer(
            stage,
            producer,
            [(batch, ids)],
            attempt=RandomIds().new_id(),
            producers=stage.describe.producers or 0,
            settings=Settings(),
        )
    except DurableShuffleError as e:
        answer = {"outcome": e.kind}
    else:
        answer = {"outcome": "won" if result.won else "lost"}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
