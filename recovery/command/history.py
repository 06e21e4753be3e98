"""The commands that a successor has to know, kept short. Pure.

Strategy: what a command said before the last one of its kind is forgotten, but not a drop that
nobody has acknowledged as carried out: without it the part would rise again in a successor that is
described by an older list. After Materialize's `ComputeCommandHistory`.
"""

from durable_shuffle.recovery.command.external import (
    AllowRelease,
    DropPart,
    ExternalCommand,
    RunThis,
)
from durable_shuffle.recovery.command.wanted import reduced


class CommandHistory:
    """Args:
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
