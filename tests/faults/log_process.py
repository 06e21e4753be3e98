"""A log producer or a follower in a process of its own, for tests that stop, kill and race them.

Run as a script: `log_process.py ROOT`. Each line on stdin is a JSON job, each reply one JSON line.
A producer says {"at": "append"} at its gate, right before it creates a record of the slot that the
job names; any line on stdin opens the gate.
"""

import json
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from small_log import numbered_rows, read_extent, wait_for
from small_stage import SMALL

from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.serialization.markers import Checkpoint
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.log.layout import StagePath, slot_name
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.read.feed import EndOfInput
from durable_shuffle.shuffle.read.log_feed import LogFeed
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.write.log_producer import LogProducer


def say(**fields: object) -> None:
    """Tell the parent one thing."""
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


class GatedStorage(LocalStorage):
    """Stops before the first create of one slot in a producer's log until the gate is opened."""

    gate = ""

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        if "/producers/" in key and self.gate and key.endswith(self.gate):
            self.gate = ""
            say(at="append")
            sys.stdin.readline()
        return super().put_if_absent(key, data)


def produce(stage: StageHandle, *, rows: int, step: int, end: str) -> None:
    """Copy the source, rows numbered from 0, on from the log's source position."""
    producer = LogProducer.open(
        stage, 0, record_id=RandomIds().new_id(), generation=1, settings=SMALL
    )
    say(at="open", epoch=producer.epoch, source=producer.source_position.decode())
    while (at := int(producer.source_position or b"0")) < rows:
        to = min(at + step, rows)
        new = numbered_rows(at, to, stage.describe.partitions)
        producer.append(new, b"%d" % to, markers=[Checkpoint(to)])
    if end:
        producer.end(end)  # type: ignore[arg-type]
    say(outcome="done")


def follow(stage: StageHandle, *, subpartition: int) -> None:
    """Tell every extent as it comes, until the end."""
    clock = SystemClock()
    feed = LogFeed(stage, subpartition, {}, settings=SMALL, clock=clock)
    while True:
        found = wait_for(feed, clock=clock, timeout_seconds=math.inf)
        if isinstance(found, EndOfInput):
            say(outcome="end", modes=found.modes)
            return
        events = [
            what.id if isinstance(what, Checkpoint) else what
            for _, _, what in read_extent(stage, subpartition, found)
        ]
        say(first=found.first_ordinal, rows=found.rows, slot=found.slot, events=events)


def run(root: str, job: dict[str, object]) -> None:
    """Do one job and tell its outcome."""
    storage = GatedStorage(root)
    gate = job.pop("gate", None)
    storage.gate = "" if gate is None else "/" + slot_name(int(str(gate)))
    stage = open_stage(storage, StagePath(**job.pop("path")))  # type: ignore[arg-type]
    try:
        {"produce": produce, "follow": follow}[str(job.pop("do"))](stage, **job)  # type: ignore[operator]
    except DurableShuffleError as error:
        say(outcome=type(error).__name__, message=str(error))


if __name__ == "__main__":
    say(at="start")
    while line := sys.stdin.readline():
        run(sys.argv[1], json.loads(line))
