"""What is wanted of a pipeline, and how external commands change that. Pure.

A command and the state go in; a new state and requests come out, or a refusal and nothing else.
Nothing here could start, stop or read anything: the coordinator carries the requests out, and only
then takes the new state over. A full list (`Reconcile`) counts whole or not at all.

The history holds the commands that a successor has to know, and is kept short: what a command said
before the last one of its kind is forgotten, but not a drop that nobody has acknowledged as carried
out. Without it the part would rise again in a successor that is described by an older list. After
Materialize's `ComputeCommandHistory`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from durable_shuffle.recovery.job.ends import StopMode, combined_stop
from durable_shuffle.recovery.pipeline.commands.requests import (
    AllowRelease,
    ChangeSettings,
    Description,
    DropPart,
    ExternalCommand,
    Reconcile,
    ResumeIt,
    RunThis,
    StopIt,
    listed,
)
from durable_shuffle.serialization.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the commands so far add up to."""

    run: Description | None = None
    """What was asked for from outside; None: what the coordinator brought along."""
    stop: StopMode | None = None
    settings: dict[str, int | float] | None = None
    """All that were given; None if none were."""


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
        return replace(wanted, settings={**(wanted.settings or {}), **command.settings})
    return wanted


def _reconciled(wanted: Wanted, done: Reconcile) -> Handled:
    """Have the whole list count. What it does not mention is not wanted any more."""
    commands = listed(done)
    for command in commands:
        if not isinstance(command, RunThis | DropPart | AllowRelease | ChangeSettings):
            raise InvalidInputError(f"a full list does not hold {command.KIND}")
    if not any(isinstance(command, RunThis) for command in commands):
        raise InvalidInputError("a full list names what should run; to end it, ask for a stop")
    state = replace(wanted, run=None, settings=None)
    requests: list[ExternalCommand] = []
    for command in reduced(commands):
        state = _changed(state, command)
        requests.append(command)
    if not any(isinstance(command, ChangeSettings) for command in commands) and wanted.settings:
        requests.insert(0, ChangeSettings(done.record_id, {}))
        state = replace(state, settings={})
    return Handled(state, (*requests, done))


def reduced(commands: Sequence[ExternalCommand]) -> tuple[ExternalCommand, ...]:
    """Return the commands that still say something, in a fixed order.

    Settings joined into one, the last description, drops of parts once each, the last release of
    each stage. What asks for an end, a pause or a restart says nothing later.
    """
    settings: dict[str, int | float] = {}
    last: ChangeSettings | None = None
    run: RunThis | None = None
    drops: dict[str, DropPart] = {}
    releases: dict[str, AllowRelease] = {}
    for command in commands:
        if isinstance(command, ChangeSettings):
            settings, last = {**settings, **command.settings}, command
        elif isinstance(command, RunThis):
            run = command
        elif isinstance(command, DropPart):
            drops[command.part] = command
        elif isinstance(command, AllowRelease):
            releases[command.stage] = command
    found: list[ExternalCommand] = [] if last is None else [replace(last, settings=settings)]
    found += [] if run is None else [run]
    return (*found, *drops.values(), *releases.values())


class CommandHistory:
    """What a successor has to know.

    Args:
        commands: as an earlier `commands` gave them.
    """

    def __init__(self, commands: tuple[ExternalCommand, ...] = ()) -> None:
        self._commands = list(commands)
        self._reduced = len(commands)

    def add(self, command: ExternalCommand) -> None:
        """Remember a command that counts."""
        self._commands.append(command)
        if len(self._commands) > 2 * max(self._reduced, 8):
            self._commands = list(reduced(self._commands))
            self._reduced = len(self._commands)

    def replace(self, commands: tuple[ExternalCommand, ...]) -> None:
        """Have a full list count, with the drops that were not acknowledged."""
        drops = [one for one in reduced(self._commands) if isinstance(one, DropPart)]
        self._commands = list(reduced((*commands, *drops)))
        self._reduced = len(self._commands)

    def forget_run(self) -> None:
        """What was to run came to nothing: something else was brought along."""
        self._commands = [one for one in self._commands if not isinstance(one, RunThis)]

    def carried_out(self, command: DropPart | AllowRelease) -> None:
        """It was done to the end: nobody has to do it again."""
        self._commands = [one for one in self._commands if not _same(one, command)]

    def __len__(self) -> int:
        return len(self._commands)

    @property
    def commands(self) -> tuple[ExternalCommand, ...]:
        """What a successor has to know, reduced."""
        return reduced(self._commands)


def _same(one: ExternalCommand, done: DropPart | AllowRelease) -> bool:
    if isinstance(one, DropPart) and isinstance(done, DropPart):
        return one.part == done.part
    return one == done
