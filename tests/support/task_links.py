"""A task's line as it is once START stands."""

from collections.abc import Callable

from durable_shuffle.recovery.job.phases import TaskReport
from durable_shuffle.recovery.pipeline.commands.orders import StartTasks
from durable_shuffle.recovery.pipeline.task.link import TaskLink


def allowed_link(task: str, epoch: int, send: Callable[[TaskReport], None]) -> TaskLink:
    """A line of an attempt that may write."""
    link = TaskLink(task, epoch, send)
    link.deliver(StartTasks((task,), epoch))
    return link
