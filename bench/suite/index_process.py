"""A driver of its own process seals a stage that is written, opens it and reads one partition.

Prints what that took as JSON: the peak of its memory, seconds and requests of each step.
"""

import json
import resource
import sys
import time

from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import StagePath, index_part_key
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt, read_producer
from durable_shuffle.shuffle.log.stage import open_stage, require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_subpartition, subpartition_bytes
from durable_shuffle.shuffle.seal.seal import seal_stage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage


def main() -> int:
    """Take a folder, the stage's folder, M and a subpartition."""
    folder, name, fingerprint, incarnation, producers, subpartition = sys.argv[1:]
    storage, settings = CountingStorage(open_storage(folder)), Settings()
    stage = open_stage(storage, StagePath("job", name, fingerprint, incarnation))
    steps: dict[str, dict[str, float]] = {}
    begun = time.monotonic()

    def done(step: str) -> None:
        nonlocal begun
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        took = time.monotonic() - begun
        steps[step] = {"seconds": took, "requests": storage.total, "peak_bytes": peak}
        storage.counts.clear()
        begun = time.monotonic()

    done("start")
    many = int(producers)
    commits: dict[int, CommittedAttempt] = {}
    for producer in range(many):
        found = read_producer(stage.producer_log(producer)).counting()
        assert found is not None
        commits[producer] = found.light(many)
    done("read the COMMITs")
    seal_stage(
        stage,
        commits,
        producers=many,
        generation=1,
        record_id=RandomIds().new_id(),
        settings=settings,
    )
    done("seal")
    commits.clear()
    seal = require_seal(stage)
    sizes = subpartition_bytes(stage, seal)
    done("open")
    rows = sum(b.num_rows for b in read_subpartition(stage, seal, int(subpartition), settings))
    done("read one partition")
    index = stage.path.index_key(seal.index)
    listed = {info.key: info.size_bytes for info in storage.list(stage.path.index_prefix)}
    assert set(listed) == {index_part_key(index, n) for n in range(len(listed))}
    print(
        json.dumps(
            {"steps": steps, "rows": rows, "sizes": len(sizes), "index": sorted(listed.values())}
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
