"""Check that a COMMIT agrees with itself and with the records that name it. Pure.

A COMMIT states where every record of a producer is stored. In each subpartition its extents must
number the records from 0 without a gap. Together they must cover each segment from its first byte
to its last.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import CorruptDataError, ErrorKind
from durable_shuffle.shuffle.log.records import Commit
from durable_shuffle.shuffle.verify.report import Finding

_MISMATCH = ErrorKind.CORRUPT_DATA


def check_commit(
    key: str,
    commit: Commit,
    *,
    producer: int,
    producers: int | None,
    subpartitions: npt.NDArray[np.uint32] | None,
) -> Iterator[Finding]:
    """Yield what is wrong with the COMMIT stored at `key`.

    Args:
        producer: the producer in whose log the COMMIT is stored.
        producers: M; None if unknown.
        subpartitions: the ones that this producer must state, ascending; None if unknown.
    """
    yield from _differs(key, "producer", producer, commit.producer)
    if producers is not None:
        yield from _differs(key, "M", producers, commit.producers)
    try:
        extents = commit.extent_array()
    except CorruptDataError as error:
        yield Finding(key, error.kind, "whole extents", str(error))
        return
    yield from _differs(key, "rows in extents", commit.rows, int(extents["rows"].sum()))
    if subpartitions is not None:
        found = np.unique(extents["subpartition"])
        if not np.array_equal(found, subpartitions):
            wrong = np.setxor1d(found, subpartitions)
            yield Finding(
                key,
                _MISMATCH,
                f"extents of {len(subpartitions)} subpartitions",
                f"extents of {len(found)}, the first that differs is {int(wrong[0])}",
            )
    yield from _check_ordinals(key, extents)
    yield from _check_segments(key, commit, extents)


def _check_ordinals(key: str, extents: npt.NDArray[np.void]) -> Iterator[Finding]:
    k, rows = extents["subpartition"].astype(np.int64), extents["rows"]
    if np.any(np.diff(k) < 0):
        yield Finding(key, _MISMATCH, "extents ordered by subpartition", "another order")
        return
    before = np.cumsum(rows) - rows
    _, first_of_k, group = np.unique(k, return_index=True, return_inverse=True)
    wrong = np.flatnonzero(extents["first_ordinal"] != before - before[first_of_k][group])
    if len(wrong):
        at = extents[wrong[0]]
        yield Finding(
            key,
            _MISMATCH,
            "contiguous ordinals from 0",
            f"first ordinal {int(at['first_ordinal'])} in subpartition {int(at['subpartition'])}",
        )
    sizes = np.bincount(group, minlength=len(first_of_k))[group] if len(group) else rows
    odd = np.flatnonzero(((rows == 0) != (extents["length"] == 0)) | ((rows == 0) & (sizes > 1)))
    if len(odd):
        at = extents[odd[0]]
        yield Finding(
            key,
            _MISMATCH,
            "an empty extent only as the one entry of an empty subpartition",
            f"rows={int(at['rows'])} length={int(at['length'])} in subpartition "
            f"{int(at['subpartition'])}",
        )


def _check_segments(key: str, commit: Commit, extents: npt.NDArray[np.void]) -> Iterator[Finding]:
    numbers = [segment.number for segment in commit.segments]
    yield from _differs(key, "segment numbers", list(range(len(numbers))), numbers)
    held = extents[extents["rows"] > 0]
    unknown = np.setdiff1d(held["segment"], np.array(numbers, dtype=np.uint32))
    if len(unknown):
        yield Finding(
            key, _MISMATCH, "extents in segments of the COMMIT", f"segment {int(unknown[0])}"
        )
    for segment in commit.segments:
        mine = held[held["segment"] == segment.number]
        mine = mine[np.argsort(mine["offset"], kind="stable")]
        ends = np.append(np.uint64(0), mine["offset"] + mine["length"])
        starts = np.append(mine["offset"], np.uint64(segment.length))
        wrong = np.flatnonzero(ends != starts)
        if len(wrong):
            yield Finding(
                key,
                _MISMATCH,
                f"extents that cover segment {segment.number}, bytes [0, {segment.length})",
                f"an extent that ends at {int(ends[wrong[0]])} before one that starts at "
                f"{int(starts[wrong[0]])}",
            )


def _differs(key: str, what: str, expected: object, found: object) -> Iterator[Finding]:
    if expected != found:
        yield Finding(key, _MISMATCH, f"{what} {expected}", f"{found}")
