"""What storage says about work done twice; for reports, never for decisions.

An attempt counts as run again if it left a segment newer than the COMMIT that counts, or recorded
its loss to that COMMIT. Times are the storage's own, of objects beside each other.
"""

from dataclasses import dataclass

from durable_shuffle.shuffle.log.layout import parse_segment_key
from durable_shuffle.shuffle.log.producer_log import commit_log
from durable_shuffle.shuffle.log.records import Abort, Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.log.stage_fold import numbers


@dataclass(frozen=True, slots=True)
class Reruns:
    """Counted from storage."""

    attempts: int
    """Attempts that wrote although a COMMIT existed."""
    segments: int
    """Segments of the attempts that count."""


def count_reruns(stage: StageHandle, seal: Seal) -> Reruns:
    """Compare what is stored with what SEAL names. Listings: best effort."""
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
