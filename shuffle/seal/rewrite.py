"""How the index of a sealed stage is changed: COMPACT and REPLACE, committed like any attempt.

Strategy: an author reads the log, writes objects under a random id of its own and sends one record,
slot by slot from where it stopped reading, until the record stands or is void. A cleaner gives an
author an ABORT before it deletes the author's objects: failure is no reason to delete, and neither
is another author's record. Protocol: `tests/protocol_model/protocol/compact_model.py`.

A REPLACE names other COMMITs for producers whose data was lost. Its index is made anew from the
COMMITs of all producers, so it also mends a damaged index, and readers no longer use a damaged
compaction. What it replaces stays until release: readers that began before may still read it.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from durable_shuffle.serialization.errors import AbortedError, ConflictError, InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt, read_commit
from durable_shuffle.shuffle.log.records import Abort, Compact, Replace, Seal
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    StageState,
    numbers,
    read_state,
    stage_log,
    stage_released,
    too_late,
)
from durable_shuffle.shuffle.seal.seal import tables, totals, write_index
from durable_shuffle.shuffle.write.segments import give_back


def commit_rewrite(
    stage: StageHandle, state: StageState, record: Compact | Replace, written: list[str]
) -> Compact | Replace:
    """Win `record`; return it, or the record that made it void.

    A loser deletes what it wrote. A REPLACE makes it void, and a COMPACT of the same base makes
    another COMPACT void.

    Args:
        state: of the stage when the record was made.
        written: keys of the objects that the record names.

    Raises:
        NotFoundError: the stage was released meanwhile.
        AbortedError: a cleaner gave this author up; nothing of it counts.
        OutcomeUnknownError: the storage did not say whether it took effect; the objects stay.
    """

    def unless_void(state: StageState) -> Compact | Replace | None:
        cause = state.void.get(record.record_id)
        if state.over is None and cause is None and not too_late(state, record):
            return record
        give_back(stage.storage, written)
        if state.over is not None:
            raise stage_released(stage, state.over)
        if cause is not None:
            raise AbortedError(
                f"this {record.KIND} was aborted before it counted: id={record.record_id} "
                f"stage={stage.path.prefix!r} cause={cause}; start again"
            )
        return None

    state, _ = stage_log(stage).decide(state, unless_void)
    return [*state.counted.values()][-1]


def abort_rewrite(stage: StageHandle, attempt: str, record_id: str, cause: str) -> bool:
    """Make an author's record void unless it counts; return True if it is void.

    Only after True may anybody but the author delete what the author wrote.
    """
    abort = Abort(record_id, attempt, cause)

    def unless_decided(state: StageState) -> Abort | None:
        decided = attempt in state.counted or attempt in state.void or state.over is not None
        return None if decided else abort

    state, _ = stage_log(stage).decide(read_state(stage), unless_decided)
    return attempt not in state.counted


def sealed_commits(stage: StageHandle, seal: Seal, settings: Settings) -> list[CommittedAttempt]:
    """Return the COMMIT that counts of each producer of a sealed stage.

    Raises:
        NotFoundError, CorruptDataError: one of them cannot be read.
    """

    def read(item: tuple[int, int]) -> CommittedAttempt:
        producer, slot = item
        attempt = seal.attempts[16 * producer : 16 * producer + 16].hex()
        committed = read_commit(stage.producer_log(producer), slot, attempt)
        return committed.light(seal.producers)

    with ThreadPoolExecutor(settings.control_threads) as pool:
        return list(pool.map(read, enumerate(numbers(seal.commit_slots))))


def replace_commits(
    stage: StageHandle,
    state: StageState,
    commits: list[CommittedAttempt],
    instead: Mapping[int, CommittedAttempt],
    *,
    generation: int,
    record_id: str,
    cause: str,
    settings: Settings | None = None,
) -> Replace:
    """Write a new index and win REPLACE.

    Args:
        state: of the sealed stage.
        commits: those that count in `state`, by producer.
        instead: the COMMITs to count from now on; none to mend the index alone.
        record_id: random id, also the index object's name.
        settings: as for `seal_stage`.

    Raises:
        InvalidInputError: a COMMIT would replace itself.
        ConflictError: another repair came first; look at the stage again.
        NotFoundError: the stage was released.
        AbortedError: a cleaner gave this repair up; nothing of it counts.
        OutcomeUnknownError: the storage did not say whether REPLACE took effect.
    """
    same = [p for p, committed in instead.items() if committed.slot == commits[p].slot]
    if same:
        raise InvalidInputError(
            f"a COMMIT cannot replace itself: producers={same} stage={stage.path.prefix!r}"
        )
    after = [instead.get(p, before) for p, before in enumerate(commits)]
    indexed = write_index(stage, after, record_id, settings or Settings())
    changed = [indexed.counted[p] for p in sorted(instead)]
    record = Replace(
        record_id=record_id,
        generation=generation,
        base=state.seal_slot,
        index=record_id,
        index_bytes=indexed.index_bytes,
        producers=np.array(sorted(instead), dtype="<u4").tobytes(),
        cause=cause,
        **tables(changed),
        **totals(indexed.counted),
    )
    standing = commit_rewrite(stage, state, record, indexed.written)
    if standing is not record:
        raise ConflictError(
            f"another repair came first: stage={stage.path.prefix!r} its_id={standing.record_id}; "
            "look at the stage again"
        )
    return record
