"""Figures of a recovery benchmark, and what they must be. Pure, so that tests can prove that each
check can fail.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from durable_shuffle.bench.workloads.cases import Cell
from durable_shuffle.bench.workloads.faults import FAULTS

_REDONE_ON_PURPOSE = ("F6", "F8", "F10")
"""A damaged producer is run again; a zombie and a twin are second attempts beside the first."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One cell in one round. Both runs together where the driver died."""

    workload: str
    fault: str
    peer: str
    round: int
    seconds: float
    """Wall time of the job, without starting its processes."""
    seconds_lost: float | None
    """More than the same peer took in the same round without a fault; None for F0."""
    fault_fired: bool
    evidence: str
    maps: int
    maps_again: int
    """Map tasks that ended although an attempt of them had ended before it began; for the durable
    peer, had committed."""
    reduces_again: int
    bytes_rewritten: int
    """Uncompressed Arrow bytes that map tasks put out beyond those of the run without a fault;
    `bytes_reread` the same for what reduce tasks took in. Of killed attempts known to 0.2 s."""
    bytes_reread: int
    map_bytes: int
    """Uncompressed Arrow bytes that map tasks put out, all attempts."""
    rows_expected: int
    rows_found: int
    rows_differing: int
    records_twice: int
    """Input records that count more than once in the result; `records_missing`: not at all."""
    records_missing: int
    operations: dict[str, int] | None
    """Calls of the storage: PUT, GET, LIST, DELETE, and faults; None where there is no storage."""
    orphan_bytes: int | None
    """Left on storage by attempts that do not count; None where nothing is kept."""
    committed_again: int
    """Durable: attempts that wrote although a COMMIT existed, counted from storage."""
    detected: str | None
    """The error by which damage was noticed."""
    taken_in: int | None = None
    """Bytes that a shuffle service took in, by its own count."""

    @property
    def cell(self) -> Cell:
        return Cell(self.workload, self.fault, self.peer)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def failures(figures: Sequence[Figures]) -> list[str]:
    """Return every check that failed, in words; an empty list means that all is as promised."""
    found = [] if figures else ["nothing ran"]
    for f in figures:
        name = f"round {f.round} {f.cell.name}"
        if f.fault != "F0" and not f.fault_fired:
            found.append(f"{name}: the fault did not fire: {FAULTS[f.fault].title}")
        if f.rows_expected == 0:
            found.append(f"{name}: the check is empty, no rows were expected")
        honest = f.peer == "durable" or f.workload != "W5" or f.fault == "F0"
        if honest and (f.rows_differing or f.records_twice or f.records_missing):
            found.append(
                f"{name}: wrong rows: {f.rows_differing} differ of {f.rows_expected}, "
                f"{f.records_twice} records twice, {f.records_missing} missing"
            )
        if f.peer == "durable" and f.fault not in _REDONE_ON_PURPOSE:
            if f.maps_again:
                found.append(f"{name}: {f.maps_again} committed producers ran again")
            elif f.committed_again:
                found.append(f"{name}: {f.committed_again} attempts wrote beside a COMMIT")
        if f.peer == "durable" and f.fault == "F6" and f.detected is None:
            found.append(f"{name}: a flipped bit was not noticed")
        if f.peer == "durable" and f.fault == "F6" and f.maps_again > 1:
            found.append(f"{name}: {f.maps_again} producers ran again for one damaged segment")
    return found


@dataclass(frozen=True, slots=True)
class Summary:
    """One cell over all rounds."""

    workload: str
    fault: str
    peer: str
    rounds: int
    seconds: float
    """Median; the spread is smallest and largest."""
    seconds_spread: tuple[float, float]
    seconds_lost: float | None
    """Median over rounds."""
    seconds_lost_spread: tuple[float, float] | None
    ratio: float | None
    """Median over rounds of this peer's seconds by the durable peer's in the same round."""
    maps: int
    maps_again: float
    bytes_rewritten: float
    bytes_reread: float
    records_twice: int
    """Largest over rounds; `records_missing` too."""
    records_missing: int
    operations: dict[str, float] | None
    orphan_bytes: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def summaries(figures: Sequence[Figures]) -> list[Summary]:
    """Return one line per cell, in the order in which they ran."""
    by_cell: dict[Cell, list[Figures]] = {}
    for f in figures:
        by_cell.setdefault(f.cell, []).append(f)
    return [_summary(cell, found, by_cell) for cell, found in by_cell.items()]


def _summary(cell: Cell, found: Sequence[Figures], by_cell: dict[Cell, list[Figures]]) -> Summary:
    seconds = [f.seconds for f in found]
    lost = [f.seconds_lost for f in found if f.seconds_lost is not None]
    durable = {
        f.round: f.seconds for f in by_cell.get(Cell(cell.workload, cell.fault, "durable"), [])
    }
    ratios = [f.seconds / durable[f.round] for f in found if durable.get(f.round)]
    first = found[0]
    operations = None
    if first.operations is not None:
        operations = {
            name: statistics.median((f.operations or {}).get(name, 0) for f in found)
            for name in first.operations
        }
    orphans = [f.orphan_bytes for f in found if f.orphan_bytes is not None]
    return Summary(
        workload=cell.workload,
        fault=cell.fault,
        peer=cell.peer,
        rounds=len(found),
        seconds=statistics.median(seconds),
        seconds_spread=(min(seconds), max(seconds)),
        seconds_lost=statistics.median(lost) if lost else None,
        seconds_lost_spread=(min(lost), max(lost)) if lost else None,
        ratio=statistics.median(ratios) if ratios and cell.peer != "durable" else None,
        maps=first.maps,
        maps_again=statistics.median(f.maps_again for f in found),
        bytes_rewritten=statistics.median(f.bytes_rewritten for f in found),
        bytes_reread=statistics.median(f.bytes_reread for f in found),
        records_twice=max(f.records_twice for f in found),
        records_missing=max(f.records_missing for f in found),
        operations=operations,
        orphan_bytes=statistics.median(orphans) if orphans else None,
    )
