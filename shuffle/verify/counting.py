"""The records by which segments of a stage count, a few producers at a time.

The extents of a large stage are more than a driver holds: M x R. So they are left out of the
records that are held, and each record is read again when its extents are to be checked.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from durable_shuffle.shuffle.log.appender_log import APPENDER_RECORDS, Append
from durable_shuffle.shuffle.log.producer_log import HELD_BYTES, CommittedAttempt, with_extents
from durable_shuffle.shuffle.log.records import Commit
from durable_shuffle.shuffle.verify.logs import LogCopy


def light(records: Mapping[int, Any], *, producers: int) -> dict[int, Any]:
    """Return a producer's records, without extents if those of all producers may be too many."""
    tables = {s: r for s, r in records.items() if isinstance(r, Commit | Append)}
    if sum(len(r.extents) for r in tables.values()) * producers <= HELD_BYTES:
        return dict(records)
    return {**records, **{slot: _left_out(record) for slot, record in tables.items()}}


def _left_out(record: Commit | Append) -> Commit | Append:
    if isinstance(record, Append):
        return replace(record, extents=b"", shifts=b"")
    return replace(record, extents=b"")


def whole_commits(
    copies: Mapping[int, LogCopy[Any]], commits: Mapping[int, CommittedAttempt], *, threads: int
) -> Iterator[tuple[int, str, Commit]]:
    """Yield (producer, key, COMMIT) for each of the COMMITs, with its extents.

    Raises:
        DurableShuffleError: one of them cannot be read any more.
    """
    logged = ((copies[p].log, committed) for p, committed in commits.items())
    for p, whole in zip(commits, with_extents(logged, threads=threads), strict=True):
        yield p, copies[p].log.key(whole.slot), whole.commit


def appends(
    copies: Mapping[int, LogCopy[Any]], upto: list[int]
) -> Iterator[tuple[int, int, Append]]:
    """Yield (producer, slot, record) of every APPEND that was not released.

    Args:
        upto: per producer, the slot below which segments may be gone.
    """
    for p, copy in copies.items():
        kept = upto[p] if p < len(upto) else 0
        for slot, record in copy.records.items():
            if isinstance(record, Append) and slot >= kept:
                yield p, slot, record


def whole_appends(
    copies: Mapping[int, LogCopy[Any]], upto: list[int]
) -> Iterator[tuple[int, str, Any]]:
    """Yield (producer, key, APPEND) for each APPEND that was not released, with its extents.

    Raises:
        DurableShuffleError: one of them cannot be read any more.
    """
    for p, slot, record in appends(copies, upto):
        log, key = copies[p].log, copies[p].log.key(slot)
        data = None if record.extents else log.read(slot)
        yield p, key, record if data is None else APPENDER_RECORDS.decode(data, key)
