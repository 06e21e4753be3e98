"""SEAL: what counts in a stage, decided once. Only behind it may readers read.

It names one COMMIT per producer and the index object that was made from them. `count_reruns` says
for reports what was done twice: an attempt counts as run again if it left a segment newer than the
COMMIT that counts, or recorded its loss to that COMMIT. Times are the storage's own, of objects
beside each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from durable_shuffle.serialization.errors import IncompatibleError, NotReadyError
from durable_shuffle.shuffle.log.layout import parse_segment_key
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt, commit_log
from durable_shuffle.shuffle.log.records import Abort, Seal
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    StageState,
    live_state,
    numbers,
    stage_log,
    stage_released,
)
from durable_shuffle.shuffle.seal.index import build_index, content_tag
from durable_shuffle.shuffle.write.segments import give_back


def seal_stage(
    stage: StageHandle,
    commits: Mapping[int, CommittedAttempt],
    *,
    producers: int,
    generation: int,
    record_id: str,
) -> Seal:
    """Write the index object and win SEAL, or return the seal that stands: there is only one.

    Args:
        commits: the COMMIT that counts of each producer, read from its slot.
        record_id: random id, also the index object's name.

    Raises:
        NotReadyError: a producer is missing; names the first.
        NotFoundError: the stage was released meanwhile.
    """
    missing = [p for p in range(producers) if p not in commits]
    if missing:
        raise NotReadyError(
            f"{len(missing)} of {producers} producers have not committed: first={missing[0]} "
            f"stage={stage.path.prefix!r}"
        )
    ordered = [commits[p] for p in range(producers)]
    for p, c in enumerate(ordered):
        if c.commit.producers != producers or c.commit.producer != p:
            raise IncompatibleError(
                f"a COMMIT is of another plan: producer={p} expected M={producers}, found "
                f"producer={c.commit.producer} M={c.commit.producers} stage={stage.path.prefix!r}"
            )
    state = live_state(stage)
    if state.seal is not None:
        return state.seal
    key = stage.path.index_key(record_id)
    index = build_index([c.commit for c in ordered], stage.describe.partitions, key=key)
    stage.storage.put(key, [index])
    seal = Seal(
        record_id=record_id,
        generation=generation,
        producers=producers,
        index=record_id,
        index_bytes=len(index),
        **tables(ordered),
        **totals(ordered),
    )

    def unless_decided(state: StageState) -> Seal | None:
        if state.over is None and state.seal is None:
            return seal
        give_back(stage.storage, [key])  # ours was never named and never will be
        if state.over is not None:
            raise stage_released(stage, state.over)
        return None

    state, _ = stage_log(stage).decide(state, unless_decided)
    assert state.seal is not None  # else `unless_decided` raised
    return state.seal


def tables(commits: Sequence[CommittedAttempt]) -> dict[str, Any]:
    """Return the fields of SEAL and REPLACE that hold one value per producer."""
    return {
        "commit_slots": np.array([c.slot for c in commits], dtype="<u4").tobytes(),
        "attempts": bytes.fromhex("".join(c.commit.record_id for c in commits)),
        "content_tags": b"".join(content_tag(c.commit) for c in commits),
    }


def totals(commits: Sequence[CommittedAttempt]) -> dict[str, Any]:
    """Return the fields of SEAL and REPLACE that are of the whole stage."""
    return {
        "rows": sum(c.commit.rows for c in commits),
        "data_bytes": sum(s.length for c in commits for s in c.commit.segments),
        "memory_bytes": sum(c.commit.memory_bytes for c in commits),
    }


@dataclass(frozen=True, slots=True)
class Reruns:
    """Counted from storage."""

    attempts: int
    """Attempts that wrote although a COMMIT existed."""
    segments: int
    """Segments of the attempts that count."""


def count_reruns(stage: StageHandle, seal: Seal) -> Reruns:
    """Compare listings with what SEAL names. For reports, never for decisions."""
    slots = numbers(seal.commit_slots)
    attempts = [seal.attempts[at : at + 16].hex() for at in range(0, len(seal.attempts), 16)]
    committed_at: dict[int, float] = {}
    rerun: set[str] = set()
    for info in stage.storage.list(stage.path.producers_prefix):
        folder, _, slot_text = info.key.rpartition("/")
        producer, slot = int(folder.rsplit("/p", 1)[1]), int(slot_text)
        if producer >= len(slots) or slot < slots[producer]:
            continue
        if slot == slots[producer]:
            committed_at[producer] = info.modified_wall_seconds
            continue
        record = commit_log(stage.producer_log(producer)).record(slot)
        if isinstance(record, Abort) and record.record_id == record.attempt:
            rerun.add(record.attempt)
    segments = 0
    for info in stage.storage.list(stage.path.segments_prefix):
        producer, attempt, _ = parse_segment_key(info.key)
        if producer < len(attempts) and attempts[producer] == attempt:
            segments += 1
        elif info.modified_wall_seconds > committed_at.get(producer, float("inf")):
            rerun.add(attempt)
    return Reruns(len(rerun), segments)
