"""A small sealed stage that is damaged, repaired, and read against a dictionary of its rows."""

import numpy as np
import pyarrow as pa
from sealed_stage import SealedStage, sealed_stage
from small_stage import SMALL, SeededIds, read_rows, records_below
from small_stage import write as write_attempt

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import parse_segment_key
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, require_seal
from durable_shuffle.shuffle.repair.compaction import Compaction, compact_stage
from durable_shuffle.shuffle.repair.stage import StageRepair, repair_stage
from durable_shuffle.shuffle.seal.rewrite import replace_commits, sealed_commits
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.verify.stage import check_stage

PRODUCERS, PARTITIONS = 4, 3
WRITING = Settings(writer_memory_bytes=1 << 16, frame_bytes=4096, compression="none")


def damaged(storage: MemoryStorage, key: str, at: int | None = None) -> None:
    """Flip a bit of byte `at`, or have the object gone."""
    if at is None:
        del storage._objects[key]
        return
    data = bytearray(storage._objects[key])
    data[at % len(data)] ^= 1
    storage._objects[key] = bytes(data)


def segments(stage: StageHandle, producer: int) -> list[str]:
    """Return the segments of a producer, by name."""
    listed = sorted(info.key for info in stage.storage.list(stage.path.segments_prefix))
    return [key for key in listed if parse_segment_key(key)[0] == producer]


def kinds(stage: StageHandle) -> list[str]:
    return [kind for _, kind, _ in records_below(stage.storage, stage.path.log_prefix)]


def of_producer(stage: StageHandle, producer: int) -> list[str]:
    prefix = stage.path.producer_log_prefix(producer)
    return [kind for _, kind, _ in records_below(stage.storage, prefix)]


def repair(stage: StageHandle, ids: SeededIds) -> StageRepair:
    return repair_stage(stage.storage, stage.path, SMALL, ids=ids, generation=1)


def intact(stage: StageHandle) -> bool:
    return not check_stage(stage.storage, stage.path, SMALL, released=False).findings


def assert_reads_right(made: SealedStage) -> None:
    sealed = require_seal(made.stage)
    for k in range(PARTITIONS):
        assert [row["n"] for row in read_rows(made.stage, sealed, k)] == made.of(k)


def make(ids: SeededIds, storage: MemoryStorage | None = None, *, compact: bool) -> SealedStage:
    made = sealed_stage(storage or MemoryStorage(), ids, producers=PRODUCERS, partitions=PARTITIONS)
    if compact:
        assert compact_now(made.stage, ids).won
    return made


def compact_now(stage: StageHandle, ids: SeededIds, **more: int) -> Compaction:
    return compact_stage(stage, ids=ids, generation=1, settings=SMALL, **more)


def run_again(made: SealedStage, producers: list[int], ids: SeededIds, *, other: int = 0) -> None:
    """What the next run of a job does; `other` rows more than before."""
    stage, state = made.stage, read_state(made.stage)
    assert state.seal is not None
    assert state.damaged.keys() >= set(producers)
    handle = StageHandle(stage.storage, stage.path, stage.describe, state.damaged)
    instead = {}
    for p in producers:
        batches = []
        for start in range(0, 80, 20):
            ours = [p * 100_000 + r for r in range(start, start + 20)]
            if start == 60:
                ours += [p * 100_000 + 90 + n for n in range(other)]
            texts = [f"{n}:".ljust(1200, "x") for n in ours]
            to = np.array([n % PARTITIONS for n in ours], np.uint16)
            batches.append((pa.record_batch([ours, texts], schema=stage.schema), to))
        done = write_attempt(
            handle, p, batches, ids.new_id(), producers=PRODUCERS, settings=WRITING
        )
        assert done.wrote
        instead[p] = done.committed
    commits = sealed_commits(stage, state.seal, SMALL)
    replace_commits(
        stage, state, commits, instead, generation=2, record_id=ids.new_id(), cause="test"
    )
