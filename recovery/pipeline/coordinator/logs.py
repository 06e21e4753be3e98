"""The storage side of a coordinator. Only the companion calls its methods, except `__init__`.

It holds the job log, the emitter of the command log, the requests so far, and the locations of the
stages. It decides nothing.
"""

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from durable_shuffle.recovery.pipeline.commands.emitter import Emitter
from durable_shuffle.recovery.pipeline.commands.orders import (
    LEAD_EVERY,
    Answered,
    InternalCommand,
    StartTasks,
    Succession,
    succeed,
)
from durable_shuffle.recovery.pipeline.commands.requests import (
    REQUESTS,
    AllowRelease,
    Description,
    DropPart,
    ExternalCommand,
    Handled,
    RestartPart,
    ResumeIt,
    StopIt,
    handle,
)
from durable_shuffle.recovery.pipeline.coordinator.claims import JobClaim
from durable_shuffle.recovery.pipeline.coordinator.drops import (
    check_drop,
    drop_part,
)
from durable_shuffle.recovery.pipeline.coordinator.stage_work import (
    FirstLook,
    allow_release,
    check_stored,
    first_look,
    release_consumed,
)
from durable_shuffle.recovery.pipeline.plan.plan import PipelinePlan, own_stage
from durable_shuffle.recovery.pipeline.plan.updates import PreparedPlan, plan_of, plan_parts
from durable_shuffle.recovery.pipeline.status import Status, append_status
from durable_shuffle.serialization.errors import (
    ConflictError,
    DurableShuffleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.log.job_log import read_job
from durable_shuffle.shuffle.log.layout import (
    command_log_prefix,
    request_log_prefix,
    status_log_prefix,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.typed_log import Tail
from durable_shuffle.shuffle.release.stages import Freed
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage

_CLAIM_TRIES = 100
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Claimed:
    """The coordinator has won a generation."""

    generation: int
    prepared: PreparedPlan | None
    """The plan to run; only the first time."""
    settings: Mapping[str, int | float]


@dataclass(frozen=True, slots=True)
class Request:
    """One external command, and what must be done for it."""

    slot: int
    command: ExternalCommand | None
    """None if the command cannot be read."""
    handled: Handled | None
    """None if the command is refused."""
    error: DurableShuffleError | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """START has been written."""

    slot: int
    record: bytes
    finished: frozenset[str]
    """Tasks that need not start, because their work is complete."""


class PipelineLogs:
    """The logs of one pipeline, as used by one coordinator.

    Args:
        plan: the plan that the coordinator was started with.
        given: the description of that plan.
        packages: packages whose functions an update may name.
    """

    def __init__(
        self,
        plan: PipelinePlan,
        given: Description,
        *,
        packages: Collection[str],
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._packages = packages
        self._plan, self._given, self._clock, self._ids = plan, given, clock, ids
        self._planned: tuple[Description | None, PipelinePlan, Description] | None = None
        """What was asked for when this coordinator looked first, and its plan."""
        self._emitter: Emitter | None = None
        self._succession = Succession(given)
        self._looked_up: set[str] = set()
        self._positions: dict[str, bytes] = {}
        self._before = 0
        """Requests below this slot were made before this coordinator started."""
        self._status_tail: Tail[Status] | None = None

    @cached_property
    def _storage(self) -> Storage:
        url, options = self._plan.url, self._plan.storage_options
        patience = self._plan.settings.shuffle.storage_call_seconds
        return open_storage(url, options, call_seconds=patience)

    # -- the job log

    @cached_property
    def _claim(self) -> JobClaim:
        owner, since = self._ids.new_id(), self._clock.wall()
        return JobClaim(self._storage, self._plan.name, owner, since=since)

    def first_plan(self) -> PipelinePlan:
        """Return the plan that the first `claim` will run. Writes nothing: a start that is refused
        does not disturb a coordinator that leads.

        Raises:
            InvalidInputError: the requested plan cannot be imported.
            IncompatibleError: it does not fit the stored data.
        """
        wanted = succeed(self._commands, self._requests, self._given)[0].wanted.run
        plan, _ = self._plan_for(wanted)
        state = read_job(self._storage, self._plan.name)
        check_stored(plan, state, self._storage, plan.consumers)
        return plan

    def claim(self) -> Claimed:
        """Win the next generation; the first time, also prepare the requested plan.

        Raises:
            FencedError: another coordinator leads.
            InvalidInputError, IncompatibleError: as for `first_plan`.
        """
        if self._planned is None:
            self.first_plan()
        generation = self._claim.win()
        if self._emitter is not None:
            self._emitter.lead(generation)
            return Claimed(generation, None, self._settings)
        for _ in range(_CLAIM_TRIES):
            prepared = self._succeeded(generation)
            if prepared is not None:
                return Claimed(generation, prepared, self._settings)
        raise ConflictError(
            f"an older coordinator of {self._plan.name!r} was faster {_CLAIM_TRIES} times"
        )

    def _succeeded(self, generation: int) -> PreparedPlan | None:
        """Adopt the requests so far, carry out open ones, and lead; None: read the log again."""
        self._succession, end = succeed(self._commands, self._requests, self._given)
        self._before = self._requests.find_end(self._succession.handled)
        prepared = self._made(*self._plan_for(self._succession.wanted.run))
        for drop in self._succession.wanted.drops:  # drops that nobody has completed
            self.drop(drop, prepared)
        for release in self._succession.wanted.releases:
            try:
                self.release(release, prepared)
            except InvalidInputError as error:  # not a stage of this description
                _log.warning("not released: %s", error)
                self._succession.carried_out(release)
        emitter = Emitter(self._commands, self._ids.new_id(), generation, self._ids, end)
        if not emitter.begin(self._succession.lead()):
            return None
        self._emitter = emitter
        if prepared.description != self._given:
            _log.warning(
                "goes on with %s, which was asked for since this description was first brought; "
                "ask for another update to leave it",
                prepared.description,
            )
        return prepared

    @property
    def _settings(self) -> Mapping[str, int | float]:
        return self._succession.wanted.settings

    def _plan_for(self, wanted: Description | None) -> tuple[PipelinePlan, Description]:
        """Return the plan of a description, None: of the one that was given. Imports it once."""
        if self._planned is None or self._planned[0] != wanted:
            plan, described = self._plan, self._given
            if wanted is not None:
                plan, _ = plan_of(wanted, packages=self._packages, like=self._plan)
                described = replace(wanted, version=wanted.version or plan.version)
            self._planned = wanted, plan, described
        return self._planned[1:]

    def prepare(
        self,
        description: Description,
        running: PreparedPlan,
        check: Callable[[PipelinePlan], None] = lambda _: None,
    ) -> PreparedPlan:
        """Import the pipeline that a description names, and create the stages that it needs.

        Args:
            running: the plan that it replaces.
            check: raises if the plan cannot be run for another reason.

        Raises:
            InvalidInputError: the description cannot be imported, or belongs to another pipeline;
                or as `check`.
            IncompatibleError: it does not fit the running plan or the stored data. Nothing changed.
        """
        plan, undo = plan_of(description, packages=self._packages, like=self._plan)
        try:
            described = replace(description, version=description.version or plan.version)
            changes = running.changes_to(plan_parts(plan), described)
            check(plan)
            check_stored(plan, self._claim.log.state, self._storage, changes.start)
            return self._made(plan, described)
        except BaseException:
            undo()
            raise

    def _made(self, plan: PipelinePlan, description: Description) -> PreparedPlan:
        paths = {
            name: own_stage(
                self._storage,
                self._claim.log,
                stage,
                settings=plan.settings.shuffle,
                ids=self._ids,
                clock=self._clock,
            )
            for name, stage in plan.stages.items()
            if stage.elsewhere is None
        }
        return PreparedPlan(plan, plan_parts(plan), paths, description)

    # -- the command log

    def emit(self, *commands: InternalCommand) -> tuple[int, bytes]:
        """Write commands into one slot. Raises: as for `Emitter.emit`."""
        emitter = self._emitter
        assert emitter is not None
        if emitter.number % LEAD_EVERY == 0:
            commands = (self._succession.lead(), *commands)
        return emitter.emit(*commands)

    def check(self) -> None:
        """Write what could not be written before; raise FencedError if the job was claimed."""
        assert self._emitter is not None
        self._emitter.check()
        self._claim.check()

    def start(self, prepared: PreparedPlan, epoch: int, tasks: Collection[str]) -> Started:
        """Write START for tasks. For tasks that never began, first look up where they begin."""
        look = FirstLook()
        new = [task for task in tasks if task not in self._looked_up]
        if new:
            look = first_look(prepared, self._storage, new)
            self._looked_up.update(new)
            self._positions.update(look.positions)
        begin = tuple(task for task in tasks if task not in look.finished)
        positions = {task: self._positions[task] for task in begin if task in self._positions}
        if look.finished.issuperset(prepared.plan.tasks):
            _log.warning(
                "pipeline %s has finished in an earlier run: it reads nothing any more; a pipeline "
                "of another name begins anew",
                prepared.plan.name,
            )
        start = StartTasks(begin, epoch, positions, dict(self._settings))
        return Started(*self.emit(start), look.finished)

    # -- requests

    def next_request(self) -> Request | None:
        """Return the next request, None if there is none. Reads one slot of each log.

        Raises:
            FencedError: another coordinator leads.
        """
        slot = self._succession.handled
        data = self._requests.read(slot)
        if data is None:
            self.check()
            return None
        try:
            command = REQUESTS.decode(data, name=self._requests.key(slot))
        except DurableShuffleError as error:  # no other coordinator could read it either
            return Request(slot, None, None, error)
        if slot < self._before and isinstance(command, StopIt | ResumeIt | RestartPart):
            text = f"{command.KIND} was asked for before this coordinator came: ask again"
            return Request(slot, command, None, InvalidInputError(text))
        try:
            return Request(slot, command, handle(self._succession.wanted, command))
        except DurableShuffleError as error:
            return Request(slot, command, None, error)

    def answer(
        self,
        request: Request,
        error: DurableShuffleError | None,
        text: str,
        commands: Collection[InternalCommand],
    ) -> tuple[int, bytes]:
        """Answer a request; without an error, it counts from now on.

        Args:
            commands: commands that go into the same slot.
        """
        if error is None and request.command is not None and request.handled is not None:
            answer = Answered(request.slot, "", text)
            self._succession.take(request.command)
        else:
            kind = "invalid_input" if error is None else str(error.kind)
            answer = Answered(request.slot, kind, str(error))
            self._succession.refuse()
        return self.emit(*commands, answer)

    def check_part(self, part: str, prepared: PreparedPlan) -> None:
        """Raise InvalidInputError if no such part can be dropped."""
        check_drop(prepared, self._storage, self._claim.log.state, part)

    def drop(self, command: DropPart, prepared: PreparedPlan) -> None:
        """End a part for good in its logs. Its tasks have ended, or are fenced by this call.

        A consumer that has prepared its end meanwhile stays as it is: the drop is given up.
        """
        log = self._claim.log
        try:
            part, generation = command.part, log.generation
            drop_part(
                prepared, self._storage, log.state, part, generation=generation, ids=self._ids
            )
        except InvalidInputError as error:
            _log.warning("not dropped: %s", error)
        self._succession.carried_out(command)

    def release(self, command: AllowRelease, prepared: PreparedPlan) -> str:
        """Delete consumed data of a stage; return a description of what was deleted, for people."""
        text = allow_release(
            prepared, self._storage, command, generation=self._claim.log.generation, ids=self._ids
        )
        self._succession.carried_out(command)
        return text

    def release_consumed(self, prepared: PreparedPlan) -> Freed:
        """Delete what all consumers have committed; return what was deleted."""
        generation = self._claim.log.generation
        return release_consumed(prepared, self._storage, generation=generation, ids=self._ids)

    def end(self) -> None:
        """Say that this coordinator has ended; does nothing if another one leads."""
        self._claim.end()

    # -- status

    def say(self, status: Status) -> None:
        """Append a status.

        Raises:
            FencedError: another coordinator leads.
        """
        slots = self._log(status_log_prefix(self._plan.name))
        self._status_tail = append_status(slots, self._status_tail, status)

    @property
    def _commands(self) -> SlotLog:
        return self._log(command_log_prefix(self._plan.name))

    @property
    def _requests(self) -> SlotLog:
        return self._log(request_log_prefix(self._plan.name))

    def _log(self, prefix: str) -> SlotLog:
        return SlotLog(self._storage, prefix)
