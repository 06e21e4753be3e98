"""SEAL: what counts in a stage, decided once. Only behind it may readers read.

It names one COMMIT per producer and the index object that was made from them. `count_reruns` says
for reports what was done twice: an attempt counts as run again if it left a segment newer than the
COMMIT that counts, or recorded its loss to that COMMIT. Times are the storage's own, of objects
beside each other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from durable_shuffle.serialization.errors import IncompatibleError, NotReadyError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.side_by_side import side_by_side
from durable_shuffle.shuffle.log.layout import named_here, parse_segment_key
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt, commit_log, with_extents
from durable_shuffle.shuffle.log.records import Abort, Commit, Seal
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    StageState,
    live_state,
    numbers,
    stage_log,
    stage_released,
)
from durable_shuffle.shuffle.seal.index import IndexWriter, content_tag
from durable_shuffle.shuffle.seal.transpose import by_subpartition
from durable_shuffle.shuffle.storage.contract import ObjectInfo
from durable_shuffle.shuffle.storage.local import is_far
from durable_shuffle.shuffle.write.segments import give_back


def seal_stage(
    stage: StageHandle,
    commits: Mapping[int, CommittedAttempt],
    *,
    producers: int,
    generation: int,
    record_id: str,
    settings: Settings | None = None,
) -> Seal:
    """Write the index and win SEAL; see `sealed_state`."""
    state, _ = sealed_state(
        stage,
        commits,
        producers=producers,
        generation=generation,
        record_id=record_id,
        settings=settings,
    )
    assert state.seal is not None
    return state.seal


WrittenIndex = tuple[str, bytes]
"""Id and content of an index that was written; b"" for a large one."""


def sealed_state(
    stage: StageHandle,
    commits: Mapping[int, CommittedAttempt],
    *,
    producers: int,
    generation: int,
    record_id: str,
    settings: Settings | None = None,
    known: StageState | None = None,
    may_seal: Callable[[], None] = lambda: None,
    may_go_on: Callable[[], None] = lambda: None,
    foreseen: Callable[[Seal, bytes], None] = lambda *_: None,
) -> tuple[StageState, WrittenIndex]:
    """Write the index and win SEAL, or find the seal that stands: there is only one.

    Takes memory in proportion to M + R, and temporary files where there are many extents.

    Args:
        commits: the COMMIT that counts of each producer, read from its slot.
        record_id: random id, also the index object's name.
        settings: threads and the folder for temporary files; None for the defaults.
        known: what the caller knows of the stage's log; None to read it.
        may_seal: runs beside the writing of the index, or before it; raises if the caller must not
            seal.
        may_go_on: the same of the writing of SEAL; raises if the caller must stop behind it.
        foreseen: is told the seal and a small index before the seal is written, and on a storage
            that is far before the index is: elsewhere readers read the object. Nothing that is
            stored or handed out may rest on them before this function returns that very seal.

    Returns:
        The state, with a seal, and the index that was written. The seal may name another one.

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
    state = known or live_state(stage)
    if state.seal is not None:
        return state, ("", b"")

    def seal_of(indexed: Indexed) -> Seal:
        return Seal(
            record_id=record_id,
            generation=generation,
            producers=producers,
            index=record_id,
            index_bytes=indexed.index_bytes,
            **tables(indexed.counted),
            **totals(indexed.counted),
        )

    def ready(indexed: Indexed) -> None:
        if indexed.whole:
            foreseen(seal_of(indexed), indexed.whole)

    far = is_far(stage.storage)
    before = ready if far else lambda _: None
    indexed = _written(
        lambda: write_index(stage, ordered, record_id, settings or Settings(), before),
        stage,
        may_seal,
        far=far,
    )
    if not far:
        ready(indexed)
    seal = seal_of(indexed)

    def unless_decided(state: StageState) -> Seal | None:
        if state.over is None and state.seal is None:
            return seal
        give_back(stage.storage, indexed.written)  # ours was never named and never will be
        if state.over is not None:
            raise stage_released(stage, state.over)
        return None

    known = state
    _, (state, _) = side_by_side(
        may_go_on, lambda: stage_log(stage).decide(known, unless_decided), far=far
    )
    return state, (record_id, indexed.whole)  # with a seal, else `unless_decided` raised


def _written(
    write: Callable[[], "Indexed"], stage: StageHandle, may_seal: Callable[[], None], *, far: bool
) -> "Indexed":
    """Return the index that `write` writes; give it back if the caller must not seal."""
    indexed: list[Indexed] = []
    try:
        side_by_side(may_seal, lambda: indexed.append(write()), far=far)
    except Exception:
        for one in indexed:
            give_back(stage.storage, one.written)
        raise
    return indexed[0]


@dataclass(frozen=True, slots=True)
class Counted:
    """What SEAL and REPLACE say of one COMMIT."""

    slot: int
    attempt: str
    tag: bytes
    rows: int
    data_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Indexed:
    """An index that was written, and what it was made from."""

    index_bytes: int
    """Of the index object; its parts are not counted."""
    written: list[str]
    """Keys of all its objects."""
    counted: list[Counted]
    """By producer."""
    whole: bytes
    """The index object, if it is small; else b""."""


def write_index(
    stage: StageHandle,
    commits: Sequence[CommittedAttempt],
    nonce: str,
    settings: Settings,
    ready: Callable[[Indexed], None] = lambda _: None,
) -> Indexed:
    """Write the index of the COMMITs of producers 0 to M-1 under a random id.

    Args:
        ready: is told the result before the index object is stored.

    Raises:
        IncompatibleError: a COMMIT is of another producer or another M; nothing was written.
        DurableShuffleError: what reading and writing raises; then nothing of the index stays.
    """
    for p, c in enumerate(commits):
        if c.commit.producers != len(commits) or c.commit.producer != p:
            raise IncompatibleError(
                f"a COMMIT is of another plan: producer={p} expected M={len(commits)}, found "
                f"producer={c.commit.producer} M={c.commit.producers} stage={stage.path.prefix!r}"
            )
    counted = list[Counted]()

    def each() -> Iterator[Commit]:
        logged = ((stage.producer_log(p), committed) for p, committed in enumerate(commits))
        for committed in with_extents(logged, threads=settings.control_threads):
            counted.append(_counted(committed))
            yield committed.commit

    partitions, producers = stage.describe.partitions, len(commits)
    key, put = stage.path.index_key(nonce), stage.storage.put
    writer = IndexWriter(put, key, partitions=partitions, producers=producers)
    try:
        for entries in by_subpartition(
            each(), partitions=partitions, producers=producers, folder=settings.scratch_folder
        ):
            writer.add(entries)
        attempts = bytes.fromhex("".join(c.attempt for c in counted))

        def indexed(index_bytes: int) -> Indexed:
            return Indexed(index_bytes, writer.written, counted, writer.whole)

        return indexed(writer.finish(attempts, lambda length: ready(indexed(length))))
    except BaseException:
        give_back(stage.storage, writer.written)  # no record that names it was sent or will be
        raise


def _counted(committed: CommittedAttempt) -> Counted:
    commit = committed.commit
    data_bytes = sum(segment.length for segment in commit.segments)
    names = committed.slot, commit.record_id, content_tag(commit)
    return Counted(*names, commit.rows, data_bytes, commit.memory_bytes)


def tables(counted: Sequence[Counted]) -> dict[str, Any]:
    """Return the fields of SEAL and REPLACE that hold one value per producer."""
    return {
        "commit_slots": np.array([c.slot for c in counted], dtype="<u4").tobytes(),
        "attempts": bytes.fromhex("".join(c.attempt for c in counted)),
        "content_tags": b"".join(c.tag for c in counted),
    }


def totals(counted: Sequence[Counted]) -> dict[str, Any]:
    """Return the fields of SEAL and REPLACE that are of the whole stage."""
    return {
        "rows": sum(c.rows for c in counted),
        "data_bytes": sum(c.data_bytes for c in counted),
        "memory_bytes": sum(c.memory_bytes for c in counted),
    }


@dataclass(frozen=True, slots=True)
class Reruns:
    """Counted from storage."""

    attempts: int
    """Attempts that wrote although a COMMIT existed."""
    segments: int
    """Segments of the attempts that count."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What listings show of a stage. For reports, never for decisions."""

    producers: list[ObjectInfo]
    """Slots of the producers' logs."""
    segments: list[ObjectInfo]


def list_written(stage: StageHandle) -> Listed:
    """List what the producers of a stage have written."""
    return Listed(
        *side_by_side(
            lambda: list(stage.storage.list(stage.path.producers_prefix)),
            lambda: list(stage.storage.list(stage.path.segments_prefix)),
            far=is_far(stage.storage),
        )
    )


def count_reruns(stage: StageHandle, seal: Seal, listed: Listed | None = None) -> Reruns:
    """Compare listings with what SEAL names. For reports, never for decisions.

    Args:
        listed: from after the seal was decided; None to list now.
    """
    listed = listed or list_written(stage)
    slots = numbers(seal.commit_slots)
    attempts = [seal.attempts[at : at + 16].hex() for at in range(0, len(seal.attempts), 16)]
    committed_at: dict[int, float] = {}
    rerun: set[str] = set()
    for info in listed.producers:
        producer = stage.path.producer_of(info.key)
        if producer is None or not stage.path.names_slot(info.key):
            continue  # not an object of this library
        slot = int(info.key.rpartition("/")[2])
        if producer >= len(slots) or slot < slots[producer]:
            continue
        if slot == slots[producer]:
            committed_at[producer] = info.modified_wall_seconds
            continue
        record = commit_log(stage.producer_log(producer)).record(slot)
        if isinstance(record, Abort) and record.record_id == record.attempt:
            rerun.add(record.attempt)
    segments = 0
    for info, (producer, attempt, _) in named_here(listed.segments, parse_segment_key):
        if producer < len(attempts) and attempts[producer] == attempt:
            segments += 1
        elif info.modified_wall_seconds > committed_at.get(producer, float("inf")):
            rerun.add(attempt)
    return Reruns(len(rerun), segments)
