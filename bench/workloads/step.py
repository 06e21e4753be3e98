"""One run of one cell, as a value that the processes exchange."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from durable_shuffle.bench.peers.systems import PEERS
from durable_shuffle.bench.workloads.cases import Cell
from durable_shuffle.bench.workloads.faults import FAULTS
from durable_shuffle.bench.workloads.workloads import WORKLOADS


@dataclass(frozen=True, slots=True)
class Step:
    """One run. A fault that costs the driver has two, which share a folder and a job."""

    number: int
    round: int
    workload: str
    fault: str
    peer: str
    run: int
    """1, or 2 for the run after the driver's death."""
    scale: float
    seed: int
    after: int
    """Of the moment in the kill schedule; `draw` likewise."""
    draw: int

    @property
    def cell(self) -> Cell:
        return Cell(self.workload, self.fault, self.peer)

    @property
    def job(self) -> str:
        """Name of the durable job, and of the run's folder."""
        return f"{self.workload}-{self.fault}-{self.peer}-{self.round}"

    @property
    def title(self) -> str:
        again = ", again" if self.run == 2 else ""
        return f"round {self.round} {self.cell.name}{again}"

    @property
    def session(self) -> str:
        """Steps of different sessions need clusters with different settings."""
        return f"{PEERS[self.peer].session} {FAULTS[self.fault].cluster}".strip()

    @property
    def gate(self) -> tuple[str, int] | None:
        """Phase and number of ended tasks at which the others wait for the fault."""
        phase = FAULTS[self.fault].phase
        return None if phase is None or self.run == 2 else (phase, self.after)

    @property
    def maps(self) -> int:
        return WORKLOADS[self.workload].maps

    @property
    def reduces(self) -> int:
        return WORKLOADS[self.workload].reduces

    def folder(self, work: Path) -> Path:
        """Where its tasks' lines, its hand-over and its answer are."""
        return work / "runs" / self.job

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; `Step(**values)` is the way back."""
        return asdict(self)


def result_file(work: Path, step: Step) -> Path:
    """Where a run that finished leaves its rows."""
    return step.folder(work) / "result.parquet"
