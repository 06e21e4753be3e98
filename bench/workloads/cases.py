"""What can be measured: workloads, faults, and peers, and which of them make sense together. Pure.

A combination that makes no sense is refused with a sentence, never run and never left out silently.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from durable_shuffle.serialization.errors import InvalidInputError

Phase = Literal["map", "reduce"]

PEERS = {
    "durable": "this project: stages on storage",
    "native": "Spark's own shuffle",
    "checkpoint": "Spark's shuffle, then a reliable checkpoint()",
    "parquet": "Spark's shuffle, then a Parquet table that a second run reads if it is complete",
    "dask": "Dask's peer-to-peer shuffle, two worker processes",
    "celeborn": "Spark with a remote shuffle service on this machine",
}

WORKLOADS = {
    "W1": "sort-like: 100-byte records, sorted within partitions",
    "W2": "group-by with Zipf keys: one partition has most rows",
    "W3": "whole TPC-H queries",
    "W4": "expensive producers: a fixed time per batch, a sum per key",
    "W5": "long consumer with side effects: every record into a ledger",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to hurt a run."""

    name: str
    title: str
    phase: Phase | None = None
    """Where its moment lies, for faults that the runner times."""
    second_run: bool = False
    """The driver dies, and another one does the job again."""


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("F0", "no fault"),
        Fault("F1", "SIGKILL of an executor among the map tasks", "map"),
        Fault("F2", "SIGKILL of an executor among the reduce tasks", "reduce"),
        Fault("F3", "SIGKILL of a consumer between its output and its commit"),
        Fault("F4", "SIGKILL of the driver after all maps, run again", "reduce", second_run=True),
        Fault("F5", "SIGKILL before a commit, the uncommitted segment truncated"),
        Fault("F6", "a bit flipped in a committed frame"),
        Fault("F7", "storage errors, lost replies, slow and short reads"),
        Fault("F8", "driver stopped by SIGSTOP, replaced, and resumed", "map", second_run=True),
        Fault("F9", "disk full while a segment is written"),
        Fault("F10", "a speculative twin of a map task"),
    )
}

_ON_STORAGE = ("F5", "F6", "F7", "F9")
_OWN_WAYS = ("native", "checkpoint", "parquet")


def objection(workload: str, fault: str, peer: str) -> str | None:
    """Return why this combination is not run, or None if it is."""
    if fault == "F3" and workload != "W5":
        return "only W5 has a consumer with effects"
    if workload == "W5" and fault not in ("F0", "F2", "F3", "F4"):
        return "W5 is about the consumer; the map side is hurt in the other workloads"
    if workload == "W3":
        return "tasks of whole queries are Spark's own, without gates: `bench chaos` kills those"
    if peer in ("dask", "celeborn") and workload == "W5":
        return "not written for it: no ledger"
    if peer == "dask" and fault not in ("F0", "F1", "F2"):
        return "Dask has no driver, commit or storage that this fault is about"
    if peer == "celeborn" and fault not in ("F0", "F1", "F2", "F4"):
        return "injected in this project's storage layer, which the service does not use"
    if fault in _ON_STORAGE and peer in _OWN_WAYS:
        return "injected in this project's storage layer, which this peer does not use"
    if fault == "F8" and peer in _OWN_WAYS:
        return "two drivers share nothing that a late writer could touch"
    return None


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

    F0 is added where it is missing: without it nobody knows what was lost. So is "durable".

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
    peers = list(dict.fromkeys(["durable", *peers]))
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
