"""Requests to a pipeline from outside: records of its request log, and the state they add up to.

Pure. docs/internals/format.md lists the fields. `handle` takes the state and a command. It returns
a new state and the requests to carry out, or refuses. Nothing here starts, stops or reads anything:
the coordinator carries the requests out, and only then adopts the new state. A full list
(`Reconcile`) counts completely or not at all. After Materialize's `ComputeCommandHistory`.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from durable_shuffle.recovery.job.ends import StopMode, combined_stop
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Description:
    """How a pipeline is made."""

    factory: str
    """"module:function" that returns a `Pipeline`; "" if a program passed it as an object."""
    arguments: str
    """Arguments of the function as a JSON object; "" if it has none."""
    version: str
    """Version that its author chose, for people."""
    digest: str = ""
    """Digest of all its parts when they were made; "" before that."""

    def __str__(self) -> str:
        return self.version or self.factory or self.digest[:8] or "without a version"


@dataclass(frozen=True, slots=True)
class RunThis:
    """Run this description instead of the one that runs."""

    KIND: ClassVar[str] = "RUN"
    record_id: str
    description: Description


@dataclass(frozen=True, slots=True)
class StopIt:
    """End or suspend the pipeline in this way."""

    KIND: ClassVar[str] = "STOP"
    record_id: str
    mode: StopMode


@dataclass(frozen=True, slots=True)
class ResumeIt:
    """Resume the suspended pipeline."""

    KIND: ClassVar[str] = "RESUME"
    record_id: str


@dataclass(frozen=True, slots=True)
class DropPart:
    """End a source or consumer for good."""

    KIND: ClassVar[str] = "DROP"
    record_id: str
    part: str


@dataclass(frozen=True, slots=True)
class RestartPart:
    """Restart all tasks of a source or consumer at their current positions."""

    KIND: ClassVar[str] = "RESTART"
    record_id: str
    part: str
    cause: str


@dataclass(frozen=True, slots=True)
class AllowRelease:
    """Delete data of a stage that its consumers have committed."""

    KIND: ClassVar[str] = "ALLOW_RELEASE"
    record_id: str
    stage: str
    upto: dict[str, int] = field(default_factory=dict)
    """Producer -> slot of its log, exclusive. Empty: as far as possible."""


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """Replace some settings of the pipeline; the others stay as they are."""

    KIND: ClassVar[str] = "CONFIGURE"
    record_id: str
    settings: dict[str, int | float]


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Everything that is wanted, in one record; anything not named here is no longer wanted."""

    KIND: ClassVar[str] = "RECONCILE"
    record_id: str
    commands: tuple[bytes, ...]
    """Control records of the other kinds, in order; see `listed`."""


ExternalCommand = (
    RunThis | StopIt | ResumeIt | DropPart | RestartPart | AllowRelease | ChangeSettings | Reconcile
)
REQUESTS: RecordCodec[ExternalCommand] = RecordCodec(
    (RunThis, StopIt, ResumeIt, DropPart, RestartPart, AllowRelease, ChangeSettings, Reconcile)
)


def listed(command: Reconcile) -> tuple[ExternalCommand, ...]:
    """Return the commands of a full list.

    Raises:
        CorruptDataError, IncompatibleError: a command cannot be read.
    """
    name = f"RECONCILE {command.record_id}"
    return tuple(REQUESTS.decode(data, name=name) for data in command.commands)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The sum of all requests so far. A successor needs nothing else; LEAD holds it."""

    run: Description | None = None
    """The description requested from outside; None: the one that the coordinator started with."""
    stop: StopMode | None = None
    settings: dict[str, int | float] = field(default_factory=dict)
    """All settings that were changed by requests."""
    drops: tuple[DropPart, ...] = ()
    """Drops that are not complete. If a drop were forgotten too early, a successor with an older
    description would run the part again."""
    releases: tuple[AllowRelease, ...] = ()
    """The latest release of each stage."""

    def without(self, done: DropPart | AllowRelease) -> "Wanted":
        """Return the state without a complete command, so that nobody carries it out again."""
        drops, releases = self.drops, self.releases
        if isinstance(done, DropPart):
            return replace(self, drops=tuple(drop for drop in drops if drop.part != done.part))
        return replace(self, releases=tuple(release for release in releases if release != done))


@dataclass(frozen=True, slots=True)
class Handled:
    """The result of one command."""

    wanted: Wanted
    requests: tuple[ExternalCommand, ...]
    """Requests to carry out in this order, all or none."""


def handle(wanted: Wanted, command: ExternalCommand) -> Handled:
    """Take one command in.

    Raises:
        InvalidInputError: the command contradicts earlier ones. Nothing changed.
        CorruptDataError, IncompatibleError: a full list holds a command that cannot be read.
    """
    if isinstance(command, Reconcile):
        return _reconciled(wanted, command)
    return Handled(_changed(wanted, command), (command,))


def _changed(wanted: Wanted, command: ExternalCommand) -> Wanted:
    ending = wanted.stop in (StopMode.DRAIN, StopMode.CANCEL)
    if isinstance(command, StopIt):
        return replace(wanted, stop=combined_stop(wanted.stop, command.mode))
    if ending and not isinstance(command, AllowRelease):
        raise InvalidInputError(f"the pipeline ends by {wanted.stop}, {command.KIND} is too late")
    if isinstance(command, ResumeIt):
        return replace(wanted, stop=None)
    if isinstance(command, RunThis):
        return replace(wanted, run=command.description)
    if isinstance(command, ChangeSettings):
        return replace(wanted, settings={**wanted.settings, **command.settings})
    if isinstance(command, DropPart):
        return replace(wanted, drops=(*wanted.without(command).drops, command))
    if isinstance(command, AllowRelease):
        others = (release for release in wanted.releases if release.stage != command.stage)
        return replace(wanted, releases=(*others, command))
    return wanted


def _reconciled(wanted: Wanted, done: Reconcile) -> Handled:
    """Apply the whole list. Anything that it does not name is no longer wanted."""
    commands = listed(done)
    for command in commands:
        if not isinstance(command, RunThis | DropPart | AllowRelease | ChangeSettings):
            raise InvalidInputError(f"a full list does not hold {command.KIND}")
    runs = [command for command in commands if isinstance(command, RunThis)]
    if not runs:
        raise InvalidInputError("a full list names what should run; to end it, ask for a stop")
    state = Wanted(stop=wanted.stop)
    for command in commands:
        state = _changed(state, command)
    requests: list[ExternalCommand] = [runs[-1], *state.drops, *state.releases, done]
    if state.settings or wanted.settings:
        requests.insert(0, ChangeSettings(done.record_id, state.settings))
    named = {drop.part for drop in state.drops}
    left = (drop for drop in wanted.drops if drop.part not in named)
    return Handled(replace(state, drops=(*left, *state.drops)), tuple(requests))
