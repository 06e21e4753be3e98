"""What can be run and how it can be hurt: names of workloads and faults. Pure, imports nothing."""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["map", "reduce"]
Cluster = Literal["", "twins", "decommission"]

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
    cluster: Cluster = ""
    """Which settings a cluster needs for it; "" for none."""


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
        Fault("F10", "a speculative twin of a map task", cluster="twins"),
        Fault(
            "F11",
            "an executor is decommissioned among the reduce tasks",
            "reduce",
            cluster="decommission",
        ),
    )
}
