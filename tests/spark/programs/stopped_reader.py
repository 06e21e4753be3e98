"""A reader that stops inside a partition: `stopped_reader.py ROOT STAGE`; prints a JSON line."""

import json
import sys

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage, require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_subpartition
from durable_shuffle.shuffle.storage.local import LocalStorage


def main(root: str, folder: str) -> None:
    """Read one batch of partition 0 and hold it until killed."""
    name, fingerprint, incarnation = folder.rsplit("-", 2)
    stage = open_stage(LocalStorage(root), StagePath("tests", name, fingerprint, incarnation))
    batches = read_subpartition(stage, require_seal(stage), 0, Settings())
    batch = next(batches)
    print(json.dumps({"rows": batch.num_rows}), flush=True)
    sys.stdin.readline()
    print(json.dumps({"rows": sum(b.num_rows for b in batches)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
