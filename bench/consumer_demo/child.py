"""The consumer of the demo: a process that reads one partition, row by row, until it is killed.

    python -m durable_shuffle.bench.consumer_demo.child FOLDER JOB STAGE STEP CHECKPOINT

It publishes each row with its square, and acknowledges every CHECKPOINT rows. At gates (every STEP
rows, between output and acknowledgement, and after it) it writes one JSON line that says how far it
is, and goes on when it gets a line.
"""

import json
import sys
from typing import Any

import pyarrow as pa

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.layout import parse_stage_folder
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.storage.local import LocalStorage

CONSUMER, SUBPARTITION = "demo", 0
OUTPUTS = pa.schema([("id", pa.int64()), ("square", pa.int64())])


def consume(view: View, step: int, checkpoint: int) -> None:
    """Read to the end; the function that a user would write, with gates in it."""
    rows: list[dict[str, Any]] = []

    def outputs() -> tuple[Any, ...]:
        batch = pa.RecordBatch.from_pylist(rows, schema=OUTPUTS)
        rows.clear()
        return (write_output(view.task, OUTPUTS, [batch]),)

    for row in view.records():
        rows.append({"id": row["id"], "square": row["id"] ** 2})
        if view.position.records % step == 0:
            gate(view, "processed")
        if len(rows) == checkpoint:
            published = outputs()
            gate(view, "output written")
            view.ack(outputs=published)
            gate(view, "acknowledged")
    published = outputs()
    gate(view, "output written")
    view.finish(outputs=published)


def gate(view: View, moment: str) -> None:
    """Say how far we are, and wait to be let through, or killed."""
    say(moment, view.epoch, view.position.records)
    if not sys.stdin.readline():
        raise SystemExit(1)  # nobody is left to ask


def say(moment: str, epoch: int, records: int) -> None:
    """Write one line."""
    line = {"moment": moment, "epoch": epoch, "records": records}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(folder: str, job: str, name: str, step: int, checkpoint: int) -> None:
    """Open the view and consume."""
    path = parse_stage_folder(job, name)
    if path is None:
        raise InvalidInputError(f"not a stage's folder: {name!r}")
    stage = open_stage(LocalStorage(folder), path)
    with open_view(stage, SUBPARTITION, consumer=CONSUMER) as view:
        say("opened", view.epoch, view.acknowledged.records)
        consume(view, step, checkpoint)
        say("finished", view.epoch, view.position.records)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
