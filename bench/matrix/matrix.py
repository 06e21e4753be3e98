"""Runs a matrix of workloads, faults and peers, interleaved, and checks every answer."""

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from durable_shuffle.bench.cluster.store import running_store
from durable_shuffle.bench.machine import machine_text
from durable_shuffle.bench.matrix.collect import collect
from durable_shuffle.bench.matrix.figures import Figures, failures, summaries
from durable_shuffle.bench.matrix.given_up import kept_runs, unproven
from durable_shuffle.bench.matrix.schedule import Moment, moment, schedule_text
from durable_shuffle.bench.matrix.spark_runner import SparkRunner
from durable_shuffle.bench.peers.systems import PEERS, absent_peers
from durable_shuffle.bench.workloads.cases import Cell, plan_cells
from durable_shuffle.bench.workloads.faults import FAULTS
from durable_shuffle.bench.workloads.oracle import Oracle
from durable_shuffle.bench.workloads.step import Step
from durable_shuffle.bench.workloads.workloads import WORKLOADS
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock, SystemClock

DEFAULT_SCALE = 0.5
_IN_FILES = frozenset({"F5", "F6", "F9"})
"""Faults of files on a disk."""


@dataclass(frozen=True, slots=True)
class RecoveryOptions:
    """What a user may choose."""

    workloads: tuple[str, ...] = ("W4",)
    faults: tuple[str, ...] = ("F0", "F2", "F4")
    peers: tuple[str, ...] = ("native",)
    scale: float = DEFAULT_SCALE
    seed: int = 0
    rounds: int = 1
    storage: str = "folder"
    """Where the durable peer stores, one of STORAGES."""
    work: Path | None = None
    """Empty or new folder for logs and stages, kept; default a temporary one, deleted."""


def measured(
    options: RecoveryOptions, console: Console, command: str, clock: Clock | None = None
) -> dict[str, Any]:
    """Run the matrix, print its schedule, and return the document.

    Args:
        command: what the user typed, for the document.

    Raises:
        InvalidInputError: an unknown name, or no combination that makes sense.
        UnavailableError: a cluster could not be started or ended by itself.
    """
    clock = clock or SystemClock()
    if options.storage != "folder" and (files := _IN_FILES.intersection(options.faults)):
        raise InvalidInputError(
            f"{', '.join(sorted(files))} is about files on a disk, so it needs --storage folder"
        )
    cells, refused = plan_cells(
        options.workloads, options.faults, options.peers, absent_peers(os.environ)
    )
    left_out = [(cell.name, why) for cell, why in refused]

    def tell(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    for name, why in left_out:
        tell(f"not run: {name}: {why}")
    steps, moments = plan_steps(options, cells)
    schedule = schedule_text(options.seed, moments)
    if any(cell.fault != "F0" for cell in cells):
        tell(schedule)
    start, date = clock.monotonic(), clock.wall()
    with ExitStack() as stack:
        work = options.work
        if work is None:
            temporary = tempfile.TemporaryDirectory(
                prefix="durable-shuffle-bench-", ignore_cleanup_errors=True
            )
            work = Path(stack.enter_context(temporary))
        work.mkdir(parents=True, exist_ok=True)
        work = work.resolve()
        store = stack.enter_context(running_store(options.storage, work))
        results = SparkRunner(work, clock, tell).run(steps)
        runs, failed_runs = kept_runs(steps, results)
        figures, timelines = collect(work, runs, Oracle(options.scale, options.seed))
    proven = []
    for f in figures:
        doubt = unproven(f, has_service=PEERS[f.peer].taken_in is not None)
        if doubt is None:
            proven.append(f)
        else:
            failed_runs.append((f"{f.cell.name}, round {f.round}", doubt))
    figures = proven
    for name, why in failed_runs:
        tell(f"not run: {name}: {why}")
    left_out += failed_runs
    figures.sort(key=lambda f: (cells.index(f.cell), f.round))
    failed = failures(figures)
    summary = summaries(figures)
    for line in failed:
        console.print(f"FAILED  {line}", style="red", markup=False, highlight=False)
    return {
        "kind": "recovery",
        "command": command,
        "date_wall_seconds": date,
        "machine": machine_text(),
        "scale": options.scale,
        "seed": options.seed,
        "rounds": options.rounds,
        "storage": store.told,
        "seconds": clock.monotonic() - start,
        "schedule": schedule.splitlines(),
        "refused": [{"cell": name, "why": why} for name, why in left_out],
        "peers": [
            peer.to_dict(os.environ) | {"settings": results.settings.get(name, {})}
            for name, peer in PEERS.items()
            if any(cell.peer == name for cell in cells)
        ],
        "passed": not failed,
        "failures": failed,
        "summary": [s.to_dict() for s in summary],
        "figures": [f.to_dict() for f in figures],
        "timelines": _drawn(figures, timelines),
    }


def plan_steps(options: RecoveryOptions, cells: Sequence[Cell]) -> tuple[list[Step], list[Moment]]:
    """Return the steps, peers next to each other in every round, and their moments."""
    steps: list[Step] = []
    moments: dict[tuple[int, str, str], Moment] = {}
    for number in range(options.rounds):
        # every other round the other way round: who comes first is no advantage
        for cell in cells if number % 2 == 0 else reversed(cells):
            workload = WORKLOADS[cell.workload]
            at = moment(
                options.seed, cell.workload, cell.fault, number,
                maps=workload.maps, reduces=workload.reduces,
            )  # fmt: skip
            moments[number, cell.workload, cell.fault] = at
            for run in (1, 2) if FAULTS[cell.fault].second_run else (1,):
                step = Step(
                    number=len(steps),
                    round=number,
                    workload=cell.workload,
                    fault=cell.fault,
                    peer=cell.peer,
                    run=run,
                    scale=options.scale,
                    seed=options.seed,
                    after=at.after,
                    draw=at.draw,
                )
                steps.append(step)
    return steps, list(moments.values())


def _drawn(figures: Sequence[Figures], timelines: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the timelines of the first round."""
    found = []
    for f in figures:
        if f.round == 0:
            drawn = timelines[f"{f.workload}-{f.fault}-{f.peer}-0"].to_dict()
            found.append({"workload": f.workload, "fault": f.fault, "peer": f.peer, **drawn})
    return found
