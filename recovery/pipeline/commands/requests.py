"""What somebody outside wants of a pipeline: records of its request log, and what they add up to.

Pure. docs/format.md lists the fields. `handle` takes the state and a command and returns a new
state and what is to be done, or refuses. Nothing here could start, stop or read anything: the
coordinator carries the requests out, and only then takes the new state over. A full list
(`Reconcile`) counts whole or not at all. After Materialize's `ComputeCommandHistory`.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from durable_shuffle.recovery.job.ends import StopMode, combined_stop
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Description:
    """Where a pipeline comes from."""

    factory: str
    """"module:function" that returns a `Pipeline`; "" if a program gave it as an object."""
    arguments: str
    """Of the function: a JSON object, "" without."""
    version: str
    """As its author calls it, for people."""
    digest: str = ""
    """Digest of all its parts as they were made; "" before anybody made them."""

    def __str__(self) -> str:
        return self.version or self.factory or self.digest[:8] or "without a version"


@dataclass(frozen=True, slots=True)
class RunThis:
    """This description should run, in the place of the one that does."""

    KIND: ClassVar[str] = "RUN"
    record_id: str
    description: Description


@dataclass(frozen=True, slots=True)
class StopIt:
    """The pipeline should end, or pause, in this way."""

    KIND: ClassVar[str] = "STOP"
    record_id: str
    mode: StopMode


@dataclass(frozen=True, slots=True)
class ResumeIt:
    """The pipeline, which was suspended, should go on."""

    KIND: ClassVar[str] = "RESUME"
    record_id: str


@dataclass(frozen=True, slots=True)
class DropPart:
    """A source or consumer should end for good."""

    KIND: ClassVar[str] = "DROP"
    record_id: str
    part: str


@dataclass(frozen=True, slots=True)
class RestartPart:
    """All tasks of a source or consumer should start anew, where they are."""

    KIND: ClassVar[str] = "RESTART"
    record_id: str
    part: str
    cause: str


@dataclass(frozen=True, slots=True)
class AllowRelease:
    """Data of a stage may go, as far as its consumers have committed."""

    KIND: ClassVar[str] = "ALLOW_RELEASE"
    record_id: str
    stage: str
    upto: dict[str, int] = field(default_factory=dict)
    """Producer -> slot of its log, exclusive; empty: as far as possible."""


@dataclass(frozen=True, slots=True)
class ChangeSettings:
    """Settings in the place of those that the pipeline was made with; others as before."""

    KIND: ClassVar[str] = "CONFIGURE"
    record_id: str
    settings: dict[str, int | float]


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Everything that is wanted, in one record: what it does not name is not wanted any more."""

    KIND: ClassVar[str] = "RECONCILE"
    record_id: str
    commands: tuple[bytes, ...]
    """Control records of the others' kinds, in their order; see `listed`."""


ExternalCommand = (
    RunThis | StopIt | ResumeIt | DropPart | RestartPart | AllowRelease | ChangeSettings | Reconcile
)
REQUESTS: RecordCodec[ExternalCommand] = RecordCodec(
    (RunThis, StopIt, ResumeIt, DropPart, RestartPart, AllowRelease, ChangeSettings, Reconcile)
)


def listed(command: Reconcile) -> tuple[ExternalCommand, ...]:
    """Return the commands of a full list.

    Raises:
        CorruptDataError, IncompatibleError: one of them cannot be read.
    """
    name = f"RECONCILE {command.record_id}"
    return tuple(REQUESTS.decode(data, name=name) for data in command.commands)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the commands so far add up to: all that a successor has to know. LEAD holds it."""

    run: Description | None = None
    """What was asked for from outside; None: what the coordinator brought along."""
    stop: StopMode | None = None
    settings: dict[str, int | float] = field(default_factory=dict)
    """All that were given."""
    drops: tuple[DropPart, ...] = ()
    """Those that nobody has carried out to the end. Forgotten too early, the part would rise again
    in a successor that is described by an older list."""
    releases: tuple[AllowRelease, ...] = ()
    """The last one of each stage."""

    def without(self, done: DropPart | AllowRelease) -> "Wanted":
        """Return it once a command was carried out to the end: nobody has to do that again."""
        drops, releases = self.drops, self.releases
        if isinstance(done, DropPart):
            return replace(self, drops=tuple(drop for drop in drops if drop.part != done.part))
        return replace(self, releases=tuple(release for release in releases if release != done))


@dataclass(frozen=True, slots=True)
class Handled:
    """What became of one command."""

    wanted: Wanted
    requests: tuple[ExternalCommand, ...]
    """To be carried out in this order, all or none."""


def handle(wanted: Wanted, command: ExternalCommand) -> Handled:
    """Take one command in.

    Raises:
        InvalidInputError: it does not fit what was asked for before. Nothing changed.
        CorruptDataError, IncompatibleError: a full list holds what cannot be read.
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
    """Have the whole list count. What it does not mention is not wanted any more."""
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
