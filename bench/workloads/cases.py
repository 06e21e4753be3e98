"""Which workloads, faults and peers make sense together. Pure.

A combination that makes no sense is refused with a sentence, never run and never left out silently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from durable_shuffle.bench.peers.systems import DURABLE, PEERS
from durable_shuffle.bench.workloads.faults import FAULTS, WORKLOADS
from durable_shuffle.serialization.errors import InvalidInputError


def objection(workload: str, fault: str, peer: str) -> str | None:
    """Return why this combination is not run, or None if it is."""
    if fault == "F3" and workload != "W5":
        return "only W5 has a consumer with effects"
    if workload == "W5" and fault not in ("F0", "F2", "F3", "F4"):
        return "W5 is about the consumer; the map side is hurt in the other workloads"
    if workload == "W3":
        return "tasks of whole queries are Spark's own, without gates: `bench chaos` kills those"
    refuses = PEERS[peer].refuses
    return refuses.get(workload) or refuses.get(fault)


@dataclass(frozen=True, slots=True)
class Cell:
    """One entry of the matrix."""

    workload: str
    fault: str
    peer: str

    @property
    def name(self) -> str:
        return f"{self.workload} {self.fault} {self.peer}"


def plan_cells(
    workloads: Sequence[str],
    faults: Sequence[str],
    peers: Sequence[str],
    absent: Mapping[str, str] | None = None,
) -> tuple[list[Cell], list[tuple[Cell, str]]]:
    """Return the cells to run, peers next to each other, and those that are not run, with why.

    Args:
        absent: peers that this machine does not have, and what is missing.

    F0 is added where it is missing: without it nobody knows what was lost. So is this project.

    Raises:
        InvalidInputError: an unknown name, or nothing is left to run.
    """
    for what, given, known in (
        ("workload", workloads, WORKLOADS),
        ("fault", faults, FAULTS),
        ("peer", peers, PEERS),
    ):
        for name in given:
            if name not in known:
                raise InvalidInputError(f"unknown {what} {name!r}, expected one of {list(known)}")
    faults = list(dict.fromkeys(["F0", *faults]))
    peers = list(dict.fromkeys([DURABLE, *peers]))
    every = [Cell(w, f, p) for w in dict.fromkeys(workloads) for f in faults for p in peers]
    wanted, refused = [], []
    for cell in every:
        why = (absent or {}).get(cell.peer) or objection(cell.workload, cell.fault, cell.peer)
        if why is None:
            wanted.append(cell)
        else:
            refused.append((cell, why))
    if not any(cell.fault != "F0" for cell in wanted) and len(faults) > 1:
        told = "; ".join(f"{cell.name}: {why}" for cell, why in refused)
        raise InvalidInputError(f"no fault is left to run: {told}")
    return wanted, refused
