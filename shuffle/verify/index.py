"""Check that an index object is intact and equal to the index built from the commits. Pure.

The commits determine the index byte for byte, so this comparison leaves no byte unchecked.
"""

from collections.abc import Iterator

import numpy as np

from durable_shuffle.serialization.errors import DurableShuffleError, ErrorKind
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.seal.index import (
    ENTRY_BYTES,
    HEADER_BYTES,
    entry_offset,
    parse_entry,
    parse_header,
    parse_slice,
)
from durable_shuffle.shuffle.verify.report import Finding, finding_of

_MISMATCH = ErrorKind.CORRUPT_DATA


def check_index(
    key: str, data: bytes, seal: Seal, *, partitions: int | None, rebuilt: bytes | None
) -> Iterator[Finding]:
    """Yield what is wrong with the index object `data`.

    Args:
        partitions: R; None if DESCRIBE could not be read, then the header's R is used.
        rebuilt: the index built from the commits; None if not all of them could be read.
    """
    findings = list(_check_parts(key, data, seal, partitions))
    yield from findings
    if rebuilt is not None and data != rebuilt and not findings:
        shorter, longer = sorted((len(data), len(rebuilt)))
        one, other = (np.frombuffer(b, dtype=np.uint8, count=shorter) for b in (data, rebuilt))
        differing = np.flatnonzero(one != other)
        start = int(differing[0]) if len(differing) else shorter
        end = int(differing[-1]) + 1 if shorter == longer else longer
        expected, found = "the index of the commits that SEAL names", "another index"
        yield Finding(key, _MISMATCH, expected, found, start, end - start)


def _check_parts(key: str, data: bytes, seal: Seal, partitions: int | None) -> Iterator[Finding]:
    if len(data) != seal.index_bytes:
        start, end = sorted((len(data), seal.index_bytes))
        expected, found = f"{seal.index_bytes} bytes", f"{len(data)} bytes"
        yield Finding(key, _MISMATCH, expected, found, start, end - start)
    if len(data) < HEADER_BYTES:
        return
    header = {"start": 0, "length": HEADER_BYTES}
    try:
        found_r, found_m = parse_header(data[:HEADER_BYTES], key=key)
    except DurableShuffleError as error:
        yield finding_of(error, key, "an intact header", **header)
    else:
        partitions = found_r if partitions is None else partitions
        if (found_r, found_m) != (partitions, seal.producers):
            expected, found = f"R={partitions} M={seal.producers}", f"R={found_r} M={found_m}"
            yield Finding(key, _MISMATCH, expected, found, **header)
    if partitions is None:
        return
    next_start = entry_offset(partitions)
    for k in range(partitions):
        at = entry_offset(k)
        if at + ENTRY_BYTES > len(data):
            return  # too short, reported above
        try:
            start, length, crc = parse_entry(
                data[at : at + ENTRY_BYTES],
                k,
                key=key,
                partitions=partitions,
                producers=seal.producers,
            )
        except DurableShuffleError as error:
            yield finding_of(error, key, f"entry of {k}", start=at, length=ENTRY_BYTES)
            next_start = -1
            continue
        if next_start not in (start, -1):
            expected, found = f"slice of {k} at {next_start}", f"at {start}"
            yield Finding(key, _MISMATCH, expected, found, at, ENTRY_BYTES)
        next_start = start + length
        if next_start > len(data):
            if len(data) == seal.index_bytes:
                expected, found = f"slice of {k} below {len(data)}", f"up to {next_start}"
                yield Finding(key, _MISMATCH, expected, found, at, ENTRY_BYTES)
            continue
        try:
            parse_slice(data[start : start + length], crc, name=key, subpartition=k)
        except DurableShuffleError as error:
            yield finding_of(error, key, f"slice of {k}", start=start, length=length)
