"""What must hold in a world that is late: at every turn of the loop, at rest, at the end."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from late_tasks import NAME, PARTS

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import ENDS, TERMINAL, JobPhase, JobResult, TaskPhase
from durable_shuffle.recovery.job.restarts import UNLIMITED
from durable_shuffle.recovery.pipeline.commands import requests
from durable_shuffle.recovery.pipeline.commands.orders import Answered, SlotOrder, decode_slot
from durable_shuffle.recovery.pipeline.status import STATUSES, Status
from durable_shuffle.shuffle.log.layout import request_log_prefix, status_log_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog

if TYPE_CHECKING:
    from late_world import World


class Checks:
    """The checks of one world."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self._reached: dict[str, int] = {}
        self._statuses = 0

    def at_a_turn(self) -> None:
        """At every turn of the loop."""
        job = self.world.supervisor.machine
        live = Counter(
            task for (task, _), a in self.world.attempts.items() if a.lives and not a.doomed
        )
        assert max(live.values(), default=0) <= 1, f"two attempts: {self.world.about()}"
        if job.phase is JobPhase.RUNNING:
            for task in job.graph.tasks:
                phase = job.tasks[task].phase
                whole = phase is TaskPhase.FINISHED or phase not in TERMINAL
                assert whole, f"runs, and is not whole: {self.world.about(task)}"
        if self.world.now >= self.world.down_until:
            self._check_statuses()

    def at_rest(self) -> None:
        """Nothing happened for long: all that is described runs."""
        job = self.world.supervisor.machine
        if job.phase in ENDS and self.world.supervisor.at_rest:
            assert job.phase in (JobPhase.SUSPENDED, JobPhase.EFFECTS_PENDING), self.world.about()
        else:
            assert job.phase is JobPhase.RUNNING, self.world.about()
            running = self.world.supervisor.running
            assert running is not None
            dropped = self._dropped()
            found_parts = set(running.plan.consumers) - dropped
            assert found_parts == self._wanted() - dropped, self.world.about()
            for task, address in running.plan.tasks.items():
                state = job.tasks[task]
                found = self.world.attempts.get((task, state.epoch))
                over = state.phase is TaskPhase.FINISHED and address.owner in dropped
                assert over or (found is not None and found.lives and found.reads), (
                    self.world.about(task)
                )
            self._check_answers()

    def at_the_end(self, result: JobResult) -> None:
        """The end is one that was asked for, or has a cause that there was."""
        order = SlotOrder(0)
        for slot, data in self.world.commands.read_from():
            list(order.take(slot, decode_slot(data, name="x")))
        stopped = self.world.stopped in (StopMode.SUSPEND, StopMode.CANCEL)
        pending = result.phase is JobPhase.EFFECTS_PENDING
        assert bool(result.pending) is pending, self.world.about()
        if result.phase is JobPhase.FAILED or (pending and not stopped):
            assert result.cause is not None, self.world.about()
            known = self.world.causes | {
                "start_timeout",
                "stop_timeout",
                "silent",
                "lost",
                "aborted",
            }
            assert result.cause.kind in known, f"{result.cause} {self.world.about()}"
            if result.cause.kind == "aborted":
                assert result.cause.secondary, self.world.about()
            if self.world.settings.restarts.max_restarts == UNLIMITED:
                final = {"fenced", "start_timeout", "invalid_input"}
                assert result.cause.kind in final, f"{result.cause} {self.world.about()}"
        elif result.phase is JobPhase.CANCELED:
            assert self.world.stopped is StopMode.CANCEL, self.world.about()
        elif result.phase is JobPhase.SUSPENDED or pending:
            assert stopped, self.world.about()
        else:
            assert result.phase is JobPhase.FINISHED, self.world.about()
            assert self.world.stopped is StopMode.DRAIN, self.world.about()
        assert not [key for key, a in self.world.attempts.items() if a.lives and not a.doomed]

    def _check_statuses(self) -> None:
        slots = SlotLog(self.world.storage, status_log_prefix(NAME))
        while (data := slots.read(self._statuses)) is not None:
            status: Status = STATUSES.decode(data, name="x")
            self._statuses += 1
            for one in status.reached:
                before = self._reached.get(one.part, -1)
                assert one.records >= before, f"progress goes back: {one} {self.world.about()}"
                self._reached[one.part] = one.records

    def _answered(self) -> Iterator[tuple[requests.ExternalCommand, Answered]]:
        slots = SlotLog(self.world.storage, request_log_prefix(NAME))
        asked = {n: requests.REQUESTS.decode(data, name="x") for n, data in slots.read_from()}
        for _, data in self.world.commands.read_from():
            for command in decode_slot(data, name="x").commands:
                if isinstance(command, Answered):
                    yield asked[command.request], command

    def _accepted(self) -> Iterator[requests.ExternalCommand]:
        for command, answer in self._answered():
            if not answer.refused:
                if isinstance(command, requests.Reconcile):
                    yield from requests.listed(command)
                else:
                    yield command

    def _wanted(self) -> set[str]:
        runs = [c for c in self._accepted() if isinstance(c, requests.RunThis)]
        return set(json.loads(runs[-1].description.arguments)) if runs else set(PARTS)

    def _dropped(self) -> set[str]:
        """Parts that were dropped for good; a drop of what did not run changes nothing."""
        drops = ((c, a) for c, a in self._answered() if isinstance(c, requests.DropPart))
        return {c.part for c, a in drops if a.text.startswith("drops ")}

    def _check_answers(self) -> None:
        slots = SlotLog(self.world.storage, request_log_prefix(NAME))
        answers = [answer.request for _, answer in self._answered()]
        assert answers == list(range(slots.find_end())), (
            f"each once, in order: {self.world.about()}"
        )
