"""Map tasks that start beside the driver's first records, without Spark."""

import threading
from unittest.mock import Mock

import pytest

from durable_shuffle.jobs.engine.starting import starting
from durable_shuffle.jobs.engine.tasks import MapJob
from durable_shuffle.serialization.errors import FencedError


def failing(cancelled: threading.Event) -> tuple[Mock, MapJob]:
    """A context that says when it cancels, and a job whose tasks may not start."""
    context = Mock()
    context.cancelJobsWithTag.side_effect = lambda _tag: cancelled.set()

    def may_not() -> None:
        raise FencedError("another driver took over")

    return context, MapJob([0], "label", may_not, looks=True)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("ends", [RuntimeError("cancelled"), None, KeyboardInterrupt()])
def test_a_start_that_is_refused_cancels_and_ends(ends: BaseException | None) -> None:
    """Whether the job fails, gets through, or the user interrupts it; only Ctrl-C hides why."""
    cancelled = threading.Event()
    context, job = failing(cancelled)
    expected = KeyboardInterrupt if isinstance(ends, KeyboardInterrupt) else FencedError

    def run_tasks() -> None:
        with starting(context, job):
            assert cancelled.wait(30)
            if ends is not None:
                raise ends

    with pytest.raises(expected):
        run_tasks()
    (tag,) = {call.args[0] for call in context.cancelJobsWithTag.call_args_list}
    context.removeJobTag.assert_called_once_with(tag)


def test_tasks_that_do_not_look_start_behind_the_records() -> None:
    context, job = failing(threading.Event())
    started = []
    with pytest.raises(FencedError), starting(context, MapJob([0], "label", job.may_start)):
        started.append(1)
    assert not started
    context.addJobTag.assert_not_called()
