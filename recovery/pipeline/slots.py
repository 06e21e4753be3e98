"""Whether a pipeline can run on the slots that a launcher has."""

import logging

from durable_shuffle.recovery.pipeline.plan import PipelinePlan
from durable_shuffle.serialization.errors import InvalidInputError

_log = logging.getLogger(__name__)


def check_slots(plan: PipelinePlan, slots: int | None) -> None:
    """Look before the start whether every task can get a slot at some time.

    Sources that end make room for their consumers. If nobody knows whether they end, a warning is
    logged, and the tasks behind them wait at least until a DRAIN.

    Args:
        slots: how many tasks can run at once; None: any number.

    Raises:
        InvalidInputError: tasks that never end need more; says how many.
    """
    tasks = plan.tasks
    if slots is None or slots >= len(tasks):
        return
    endless = _endless(plan)
    for_ever = sum(address.owner in endless for address in tasks.values())
    needed = for_ever + (for_ever < len(tasks))
    if slots < needed:
        raise InvalidInputError(
            f"pipeline {plan.name!r} needs {needed} slots, {for_ever} of them for tasks that never "
            f"end ({', '.join(sorted(endless))}), and the launcher has {slots}: add some, or make "
            "fewer producers or partitions"
        )
    _log.warning(
        "pipeline %r has %d tasks and the launcher %d slots: sources run first, and tasks that "
        "wait start when others end; with sources that never end that is at a DRAIN only",
        plan.name,
        len(tasks),
        slots,
    )


def _endless(plan: PipelinePlan) -> set[str]:
    """Return the sources that say that they never end, and the consumers behind them."""
    found = {
        name
        for name, source in plan.sources.items()
        if getattr(source.source, "bounded", None) is False
    }
    stages = set(found)
    while True:
        behind = [c for c in plan.consumers.values() if c.reads in stages and c.name not in found]
        if not behind:
            return found
        found |= {consumer.name for consumer in behind}
        stages |= {consumer.writes for consumer in behind if consumer.writes is not None}
