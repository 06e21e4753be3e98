"""What a job machine decided in one step, as internal commands: one for all tasks alike. Pure."""

from collections.abc import Iterable

from durable_shuffle.recovery.command.internal import (
    CallOff,
    InternalCommand,
    PassBarrier,
    StopTasks,
)
from durable_shuffle.recovery.job_phase import Abort, Go, Stop
from durable_shuffle.recovery.stop_order import StopMode

Said = Go | Abort | Stop
"""What a machine has to say to one attempt."""


def grouped(said: Iterable[Said]) -> tuple[InternalCommand, ...]:
    """Return the same to the same attempts, each task's in its order."""
    groups: list[tuple[type[Said], int, str, list[str]]] = []
    for one in said:
        what = one.cause if isinstance(one, Abort) else one.mode if isinstance(one, Stop) else ""
        if not groups or groups[-1][:3] != (type(one), one.epoch, what):
            groups.append((type(one), one.epoch, what, []))
        groups[-1][3].append(one.task)
    return tuple(_command(*group) for group in groups)


def _command(kind: type[Said], epoch: int, what: str, tasks: list[str]) -> InternalCommand:
    if kind is Go:
        return PassBarrier(tuple(tasks), epoch)
    if kind is Abort:
        return CallOff(tuple(tasks), epoch, what)
    return StopTasks(tuple(tasks), epoch, StopMode(what))
