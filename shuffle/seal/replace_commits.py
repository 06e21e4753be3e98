"""REPLACE: other COMMITs for producers of a sealed stage whose data was lost, in one record.

It names an index of all producers, made anew from the COMMITs in their logs, so that it also mends
a damaged index and has readers pass a damaged compaction by. What it replaces stays until release:
readers that began before may still read it.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.producer_log import Committed, commit_log
from durable_shuffle.shuffle.log.records import Commit, Replace, Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.log.stage_fold import StageState, numbers
from durable_shuffle.shuffle.seal.index import build_index, content_tag
from durable_shuffle.shuffle.seal.index_rewrite import commit_rewrite
from durable_shuffle.shuffle.write.segment_writer import give_back


def sealed_commits(stage: StageHandle, seal: Seal, settings: Settings) -> list[Committed]:
    """Return the COMMIT that counts of each producer of a sealed stage.

    Raises:
        NotFoundError, CorruptDataError: one of them cannot be read.
    """

    def read(item: tuple[int, int]) -> Committed:
        producer, slot = item
        log = commit_log(stage.producer_log(producer))
        record = log.record(slot)
        if record is None:
            raise NotFoundError(f"a COMMIT that SEAL or REPLACE names is gone: {log.key(slot)!r}")
        if not isinstance(record, Commit):
            raise CorruptDataError(f"not a COMMIT, as SEAL or REPLACE says: {log.key(slot)!r}")
        return Committed(slot, record)

    with ThreadPoolExecutor(settings.control_threads) as pool:
        return list(pool.map(read, enumerate(numbers(seal.commit_slots))))


def replace_commits(
    stage: StageHandle,
    state: StageState,
    commits: list[Committed],
    instead: Mapping[int, Committed],
    *,
    generation: int,
    record_id: str,
    cause: str,
) -> Replace:
    """Write a new index and win REPLACE.

    Args:
        state: of the sealed stage.
        commits: those that count in `state`, by producer.
        instead: the COMMITs that shall count; none to mend the index alone.
        record_id: random id, also the index object's name.

    Raises:
        InvalidInputError: a COMMIT that counts already shall replace itself.
        ConflictError: another repair came first; look at the stage again.
        NotFoundError: the stage was released.
        AbortedError: a cleaner gave this repair up; nothing of it counts.
        OutcomeUnknownError: the storage did not say whether REPLACE took effect.
    """
    same = [p for p, one in instead.items() if one == commits[p]]
    if same:
        raise InvalidInputError(
            f"a COMMIT cannot replace itself: producers={same} stage={stage.path.prefix!r}"
        )
    after = [instead.get(p, before) for p, before in enumerate(commits)]
    key = stage.path.index_key(record_id)
    index = build_index([one.commit for one in after], stage.describe.partitions, key=key)
    changed = [after[p] for p in sorted(instead)]
    record = Replace(
        record_id=record_id,
        generation=generation,
        base=state.seal_slot,
        index=record_id,
        index_bytes=len(index),
        producers=np.array(sorted(instead), dtype="<u4").tobytes(),
        commit_slots=np.array([one.slot for one in changed], dtype="<u4").tobytes(),
        attempts=bytes.fromhex("".join(one.commit.record_id for one in changed)),
        content_tags=b"".join(content_tag(one.commit) for one in changed),
        rows=sum(one.commit.rows for one in after),
        data_bytes=sum(s.length for one in after for s in one.commit.segments),
        memory_bytes=sum(one.commit.memory_bytes for one in after),
        cause=cause,
    )
    try:
        stage.storage.put(key, [index])
    except DurableShuffleError:
        give_back(stage.storage, [key])  # no REPLACE was sent and none will be
        raise
    found = commit_rewrite(stage, state, record, [key])
    if found is not record:
        raise ConflictError(
            f"another repair came first: stage={stage.path.prefix!r} its_id={found.record_id}; "
            "look at the stage again"
        )
    return record
