"""External commands: what somebody outside wants of a pipeline, as records of its request log.

Pure: they only say what is wanted. docs/format.md lists the fields.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.serialization.control import RecordCodec


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
    """What was suspended should go on."""

    KIND: ClassVar[str] = "RESUME"
    record_id: str


@dataclass(frozen=True, slots=True)
class DropPart:
    """A source or consumer should be no more."""

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
