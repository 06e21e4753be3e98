"""The attempts of one coordinator: made, launched, watched, killed. Decides nothing.

The control loop uses it; only `make` and `check` are called by the companion. An attempt that says
nothing for too long counts as lost, unless it was the coordinator itself that did not listen: its
process was paused, or its loop was held up.
"""

import logging
import math
from collections.abc import Iterator

from durable_shuffle.recovery.job.phases import Failure, TaskReport
from durable_shuffle.recovery.job.restarts import AttemptKey, Liveness
from durable_shuffle.recovery.pipeline.lines.launcher import Hear, Launcher, MakeLauncher
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan, check_slots
from durable_shuffle.recovery.pipeline.plan.updates import PreparedPlan
from durable_shuffle.recovery.pipeline.task.link import failure_of
from durable_shuffle.recovery.pipeline.task.run_task import RunTask

_PAUSE_SHARE = 0.25
"""A loop that did not listen for this share of `silence_seconds` was paused."""
_log = logging.getLogger(__name__)


class Attempts:
    """The attempts of one coordinator.

    Args:
        hear: receives the reports of tasks, from any thread.
    """

    def __init__(self, make_launcher: MakeLauncher, hear: Hear) -> None:
        self._make_launcher, self._hear = make_launcher, hear
        self.launcher: Launcher | None = None
        self._most_slots = 0
        """Of all times so far; Spark's executors come and go."""
        self._to_launch: set[AttemptKey] = set()
        """Launches that wait for their START."""
        self._watch = Liveness(math.inf)
        self._listened: float | None = None

    def make(self, plan: PipelinePlan) -> None:
        """Make the launcher, once. May take long.

        Raises:
            InvalidInputError: the plan cannot be run by it.
        """
        if self.launcher is None:
            self.launcher = self._make_launcher(RunTask(plan, {}), plan.settings, self._hear)
            check_slots(plan, self.slots)

    def check(self, plan: PipelinePlan) -> None:
        """Refuse a plan that the launcher cannot run.

        Raises:
            InvalidInputError: the plan cannot be sent to tasks, or there were never enough slots
                for it.
        """
        assert self.launcher is not None
        self.launcher.check(RunTask(plan, {}))
        if self.slots is not None:
            check_slots(plan, self._most_slots)

    def use(self, prepared: PreparedPlan) -> None:
        """Start new attempts of this plan; running attempts are not affected."""
        assert self.launcher is not None
        self.launcher.use(RunTask(prepared.plan, prepared.paths))
        self._watch.silence_seconds = self.launcher.silence_seconds

    @property
    def slots(self) -> int | None:
        """How many attempts can run at once; None: any number."""
        slots = None if self.launcher is None else self.launcher.slots
        self._most_slots = max(self._most_slots, slots or 0)
        return slots

    def planned(self, attempt: AttemptKey) -> None:
        """Take in that an attempt is launched once its START is written, unless it is killed."""
        self._to_launch.add(attempt)

    def is_planned(self, attempt: AttemptKey) -> bool:
        """Return whether an attempt is to be launched now; True only once."""
        planned = attempt in self._to_launch
        self._to_launch.discard(attempt)
        return planned

    def launch(self, attempt: AttemptKey, slot: int) -> Failure | None:
        """Launch an attempt that reads the command log from `slot` on; return why it cannot."""
        assert self.launcher is not None
        self._watch.launched(attempt)
        try:
            self.launcher.start(*attempt, slot)
        except Exception as error:  # noqa: BLE001 - the error ends that attempt
            self._watch.forget(attempt)
            return failure_of(error)
        return None

    def kill(self, attempt: AttemptKey) -> None:
        """Make sure that an attempt runs no more, if possible; else its logs fence it."""
        self._watch.forget(attempt)
        self._to_launch.discard(attempt)
        try:
            if self.launcher is not None:
                self.launcher.kill(*attempt)
        except Exception:  # noqa: BLE001 - fencing is enough
            _log.warning("could not kill task %s of epoch %s", *attempt, exc_info=True)

    def counts(self, report: TaskReport, now: float) -> bool:
        """Take a report in; return False if its attempt had ended."""
        return self._watch.heard((report.task, report.epoch), now, terminal=report.is_last)

    def silent(self, now: float) -> Iterator[tuple[AttemptKey, Failure]]:
        """Yield the attempts that are lost since they said nothing, each once.

        Call it regularly, after all reports that have come were taken in.
        """
        before, self._listened = self._listened, now
        if before is not None and now - before >= _PAUSE_SHARE * self._watch.silence_seconds:
            _log.warning("this coordinator did not listen for %.1f s", now - before)
            self._watch.paused(now - before)
        for task, epoch in list(self._watch.silent(now)):
            text = f"the process of {task} said nothing for {self._watch.silence_seconds:g} s"
            yield (task, epoch), Failure("silent", text)

    def next_when(self) -> float | None:
        """Return when `silent` may have something to say, None if never."""
        return self._watch.next_when()

    def push(self, slot: tuple[int, bytes]) -> None:
        """Push a slot of the command log to the tasks."""
        if self.launcher is not None:
            self.launcher.push(*slot)

    def close(self) -> None:
        """Kill all attempts and release all resources."""
        if self.launcher is not None:
            self.launcher.close()
