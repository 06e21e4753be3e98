"""From runs to figures and timelines: joins what the runner saw, tasks' lines, storage, DuckDB."""

import re
from collections.abc import Sequence
from pathlib import Path

from durable_shuffle.bench.cluster.storage_counts import reruns
from durable_shuffle.bench.cluster.store import store_of
from durable_shuffle.bench.matrix.figures import Figures
from durable_shuffle.bench.matrix.given_up import calm_job
from durable_shuffle.bench.matrix.spark_runner import Run
from durable_shuffle.bench.matrix.task_history import (
    Attempt,
    Span,
    again,
    as_committed,
    attempts_of,
    moved,
    timeline,
)
from durable_shuffle.bench.peers.systems import PEERS
from durable_shuffle.bench.peers.watched_storage import operations
from durable_shuffle.bench.workloads.faults import FAULTS
from durable_shuffle.bench.workloads.oracle import Oracle
from durable_shuffle.bench.workloads.step import Step, result_file
from durable_shuffle.bench.workloads.task_log import read_lines
from durable_shuffle.jobs.inspect.details import stage_details
from durable_shuffle.jobs.reports.timeline import Timeline
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.log.layout import slot_name
from durable_shuffle.shuffle.log.stage import open_stage

_FIRST_RECORD = re.compile(rf"/producers/p(\d+)/{slot_name(0)}$")
"""Of a producer's log: its COMMIT, as a rule."""


def collect(
    work: Path, runs: Sequence[Run], oracle: Oracle
) -> tuple[list[Figures], dict[str, Timeline]]:
    """Return one line per cell and round, and a timeline per job name."""
    by_job: dict[str, list[Run]] = {}
    for run in runs:
        by_job.setdefault(run.step.job, []).append(run)
    attempts = {job: _attempts(work, found[0].step) for job, found in by_job.items()}
    figures, timelines = [], {}
    for job, found in by_job.items():
        step = found[0].step
        calm = calm_job(step)
        figures.append(_figures(work, found, by_job[calm], attempts[job], attempts[calm], oracle))
        timelines[job] = _timeline(found, attempts[job])
    return figures, timelines


def _attempts(work: Path, step: Step) -> list[Attempt]:
    found = attempts_of(read_lines(step.folder(work)))
    if step.peer != "durable":
        return found
    listed = store_of(work).open().list(f"{step.job}/")
    commits = {
        int(match[1]): info.modified_wall_seconds
        for info in listed
        if (match := _FIRST_RECORD.search(info.key))
    }
    return as_committed(found, commits)


def _figures(
    work: Path,
    runs: Sequence[Run],
    calm_runs: Sequence[Run],
    attempts: Sequence[Attempt],
    calm: Sequence[Attempt],
    oracle: Oracle,
) -> Figures:
    first, last = runs[0], runs[-1]
    step = first.step
    seconds = sum(run.seconds for run in runs)
    rows = oracle.compare(step.workload, result_file(work, step))
    extra = {
        phase: max(0, moved(attempts, phase) - moved(calm, phase)) for phase in ("map", "reduce")
    }
    durable = step.peer == "durable"
    return Figures(
        workload=step.workload,
        fault=step.fault,
        peer=step.peer,
        round=step.round,
        seconds=seconds,
        seconds_lost=None if step.fault == "F0" else seconds - calm_runs[0].seconds,
        fault_fired=_fired(work, first, attempts),
        evidence=first.evidence,
        maps=step.maps,
        maps_again=again(attempts, "map"),
        reduces_again=again(attempts, "reduce"),
        bytes_rewritten=extra["map"],
        bytes_reread=extra["reduce"],
        map_bytes=moved(attempts, "map"),
        rows_expected=rows.expected,
        rows_found=rows.found,
        rows_differing=rows.differing,
        records_twice=rows.twice,
        records_missing=rows.missing,
        operations=operations(step.folder(work)) if durable else None,
        orphan_bytes=_orphan_bytes(work, step),
        committed_again=_committed_again(work, step, last) if durable else 0,
        detected=last.detected,
        taken_in=_taken_in(runs),
    )


def _taken_in(runs: Sequence[Run]) -> int | None:
    found = [run.taken_in for run in runs if run.taken_in is not None]
    return sum(found) if len(found) == len(runs) else None


def _fired(work: Path, run: Run, attempts: Sequence[Attempt]) -> bool:
    """Return whether the fault hit while the run was under way, by what was seen of it."""
    if run.step.fault == "F7":
        return operations(run.step.folder(work))["faults"] > 0
    if run.fault_at is None:
        return False
    phase = FAULTS[run.step.fault].phase
    if phase is None:
        return True
    return any(
        a.phase == phase and a.start <= run.fault_at and not (a.ended and a.last <= run.fault_at)
        for a in attempts
    ) or any(a.start > run.fault_at for a in attempts)


def _orphan_bytes(work: Path, step: Step) -> int | None:
    if step.peer == "durable":
        storage = store_of(work).open()
        stages = [open_stage(storage, path) for path in read_job(storage, step.job).order]
        return sum(int(stage_details(s, released=False)["uncommitted_bytes"]) for s in stages)
    stale = PEERS[step.peer].stale
    if stale is None:
        return None
    return sum(p.stat().st_size for p in stale(step.folder(work) / "hand-over"))


def _committed_again(work: Path, step: Step, last: Run) -> int:
    told = int((last.total or {}).get("map_tasks_rerun", 0))
    return max(told, reruns(store_of(work).open(), step.job)) if step.fault != "F6" else told


def _timeline(runs: Sequence[Run], attempts: Sequence[Attempt]) -> Timeline:
    first = runs[0]
    return timeline(
        first.step.cell.name,
        attempts,
        [Span(run.began, run.seconds) for run in runs],
        fault_at=first.fault_at,
        fault=FAULTS[first.step.fault].title,
        victims=first.victims,
    )
