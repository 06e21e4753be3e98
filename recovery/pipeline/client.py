"""Operates a pipeline from another process: writes a command, waits for the answer.

A command is one record in the pipeline's request log; the coordinator answers in the command log.
The client and the coordinator share only the storage. This module cannot start or stop anything.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.pipeline.commands.orders import Answered, decode_slot
from durable_shuffle.recovery.pipeline.commands.requests import (
    REQUESTS,
    AllowRelease,
    ChangeSettings,
    Description,
    DropPart,
    ExternalCommand,
    Reconcile,
    RestartPart,
    ResumeIt,
    RunThis,
    StopIt,
)
from durable_shuffle.recovery.pipeline.status import StatusView, read_status
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.log.layout import command_log_prefix, request_log_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.typed_log import Tail, TypedLog
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage

_LOOK_SECONDS = 0.1
_TAKEN_UP = "the next one takes it up"
_ERRORS = {str(error.kind): error for error in DurableShuffleError.__subclasses__()}
"""Error classes by the kind that an answer names."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The coordinator has accepted a command."""

    request: int
    """The command's slot in the request log."""
    text: str
    """What the coordinator does, for people."""


class PipelineClient:
    """Args:
    name: name of the pipeline.
    url: where it stores its data.
    storage_options: options of the fsspec driver.
    storage: an open storage, instead of `url` and `storage_options`.
    wait_seconds: how long a command waits for its answer.

    Raises:
        NotFoundError: no pipeline of that name has ever run there.

    If a command is refused, it raises the reason: for example InvalidInputError if another stop
    came first, or IncompatibleError if a description does not fit. It raises NotReadyError if
    nobody answers in time. In that case the command stands, and the next coordinator handles it.
    A coordinator that starts later refuses only a stop, a resume and a restart.
    """

    def __init__(
        self,
        name: str,
        url: str = "",
        *,
        storage_options: Mapping[str, object] | None = None,
        storage: Storage | None = None,
        wait_seconds: float = 60.0,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        self.name, self._wait_seconds = name, wait_seconds
        self._clock, self._ids = clock or SystemClock(), ids or RandomIds()
        self._storage = storage or open_storage(url, storage_options)
        self._commands = SlotLog(self._storage, command_log_prefix(name))
        self._requests = SlotLog(self._storage, request_log_prefix(name))
        self._end = 0
        if self._commands.read(0) is None:
            raise NotFoundError(f"no pipeline {name!r} was ever run on {self._storage.description}")

    def update(
        self, factory: str, arguments: Mapping[str, object] | None = None, version: str = ""
    ) -> Answer:
        """Run another description; unchanged parts keep running.

        Args:
            factory: "module:function", importable where the coordinator runs; it returns the
                `Pipeline`.
            arguments: of the function, as plain JSON values. They are stored, so pass no secrets.
        """
        text = json.dumps(arguments, sort_keys=True) if arguments else ""
        return self._ask(RunThis(self._id(), Description(factory, text, version)))

    def drain(self) -> Answer:
        """Read no new input, finish everything, and end for good."""
        return self._ask(StopIt(self._id(), StopMode.DRAIN))

    def suspend(self) -> Answer:
        """Stop every task at its current position."""
        return self._ask(StopIt(self._id(), StopMode.SUSPEND))

    def cancel(self) -> Answer:
        """Stop at once; committed data stays."""
        return self._ask(StopIt(self._id(), StopMode.CANCEL))

    def resume(self) -> Answer:
        """Continue after a suspend."""
        return self._ask(ResumeIt(self._id()))

    def restart(self, part: str, cause: str = "asked for") -> Answer:
        """Restart all tasks of a source or consumer at their current positions."""
        return self._ask(RestartPart(self._id(), part, cause))

    def drop(self, part: str) -> Answer:
        """End a source or consumer for good."""
        return self._ask(DropPart(self._id(), part))

    def allow_release(self, stage: str, upto: Mapping[int, int] | None = None) -> Answer:
        """Delete the data of a stage that all its consumers have committed.

        Args:
            upto: producer -> slot of its log, exclusive. Default: as far as possible.
        """
        slots = {str(producer): slot for producer, slot in (upto or {}).items()}
        return self._ask(AllowRelease(self._id(), stage, slots))

    def configure(self, **settings: float) -> Answer:
        """Change settings of all tasks; `TUNABLE` in pipeline/plan/plan.py names them."""
        return self._ask(ChangeSettings(self._id(), dict(settings)))

    def reconcile(self, commands: Sequence[ExternalCommand]) -> Answer:
        """Replace everything that is wanted; anything missing from `commands` is no longer wanted.

        Either all commands count, or none.

        Args:
            commands: the description to run, and any number of drops, releases and settings.
        """
        return self._ask(
            Reconcile(self._id(), tuple(REQUESTS.encode(command) for command in commands))
        )

    def status(self) -> StatusView:
        """Return the status of the pipeline, read only from its logs."""
        return read_status(self._storage, self.name, self._clock.wall())

    def _id(self) -> str:
        return self._ids.new_id()

    def _ask(self, command: ExternalCommand) -> Answer:
        self._end = self._commands.find_end(self._end)
        short_lived = isinstance(command, StopIt | ResumeIt | RestartPart)
        later = "one that comes later will refuse it: ask again then" if short_lived else _TAKEN_UP
        return self._wait(self.append(command), later)

    def append(self, command: ExternalCommand) -> int:
        """Write a command and return its slot, without waiting."""
        log = TypedLog(self._requests, REQUESTS, Tail[ExternalCommand].followed_by)
        end: Tail[ExternalCommand] = Tail(self._requests.find_end(), None)
        return log.decide(end, lambda _: command)[0].next_slot - 1

    def _wait(self, request: int, later: str = _TAKEN_UP) -> Answer:
        deadline = self._clock.monotonic() + self._wait_seconds
        while True:
            for slot, data in self._commands.read_from(self._end):
                self._end = slot + 1
                for command in decode_slot(data, name=self._commands.key(slot)).commands:
                    if isinstance(command, Answered) and command.request == request:
                        return _answer(command)
            if self._clock.monotonic() >= deadline:
                raise NotReadyError(
                    f"no coordinator of pipeline {self.name!r} answered within "
                    f"{self._wait_seconds:g} s; request {request} stands in its log, {later}"
                )
            self._clock.sleep(_LOOK_SECONDS)


def _answer(answer: Answered) -> Answer:
    if not answer.refused:
        return Answer(answer.request, answer.text)
    raise _ERRORS.get(answer.refused, InvalidInputError)(answer.text)
