"""What can be kept of the runs of peers that failed. Pure."""

from collections.abc import Sequence

from durable_shuffle.bench.matrix.figures import Figures
from durable_shuffle.bench.matrix.spark_runner import Results, Run
from durable_shuffle.bench.workloads.step import Step

_LEAST_SHARE = 0.1
"""Of the bytes that map tasks put out: compression saves less than the rest."""


def kept_runs(steps: Sequence[Step], results: Results) -> tuple[list[Run], list[tuple[str, str]]]:
    """Return the runs of which there can be figures, and what is left out, with the reason.

    A job counts if all its steps ran, and if the run without a fault that it is compared with does.
    """
    planned: dict[str, list[Step]] = {}
    for step in steps:
        planned.setdefault(step.job, []).append(step)
    ran: dict[str, list[Run]] = {}
    for run in results.runs:
        ran.setdefault(run.step.job, []).append(run)
    whole = {
        job for job, found in ran.items() if len(found) == len(planned[job]) and found[-1].finished
    }
    whole = {job for job in whole if calm_job(planned[job][0]) in whole}
    rounds = 1 + max((step.round for step in steps), default=0)
    refused = []
    for job, (first, *_) in planned.items():
        if job not in whole:
            name = first.cell.name + (f", round {first.round}" if rounds > 1 else "")
            refused.append((name, f"failed: {results.failed.get(first.peer, 'it did not finish')}"))
    return [run for run in results.runs if run.step.job in whole], refused


def calm_job(step: Step) -> str:
    """Return the job of the run without a fault that a step's run is compared with."""
    return Step(**{**step.to_dict(), "fault": "F0", "run": 1}).job


def unproven(figures: Figures, *, has_service: bool) -> str | None:
    """Return why the figures of a service's peer are refused, or None if they stand.

    Args:
        has_service: the peer is a service that counts what it takes in.
    """
    if not has_service:
        return None
    if figures.taken_in is None:
        return "the service did not say how many bytes it took in: its figures prove nothing"
    if figures.taken_in < _LEAST_SHARE * figures.map_bytes:
        return (
            f"the service took in {figures.taken_in:,} bytes of {figures.map_bytes:,} that map "
            "tasks put out: the rows went another way"
        )
    return None
