"""External commands: what somebody outside wants of a pipeline, as records of its request log.

Pure: they only say what is wanted. `session` is "" for a command that stands for itself, else the
id of the full list that it belongs to: HELLO, commands, INIT_COMPLETE. docs/format.md lists the
fields.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from durable_shuffle.recovery.stop_order import StopMode
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
    """Of all its parts as they were made; "" where nobody has made them yet."""

    def __str__(self) -> str:
        return self.version or self.factory or self.digest[:8] or "without a version"


@dataclass(frozen=True, slots=True)
class Hello:
    """A full list begins; an unfinished one before is void."""

    KIND: ClassVar[str] = "HELLO"
    record_id: str
    session: str


@dataclass(frozen=True, slots=True)
class InitComplete:
    """The list is full: what runs is made to agree with it, or nothing is."""

    KIND: ClassVar[str] = "INIT_COMPLETE"
    record_id: str
    session: str


@dataclass(frozen=True, slots=True)
class RunThis:
    """This is what should run, in the place of whatever does."""

    KIND: ClassVar[str] = "RUN"
    record_id: str
    description: Description
    session: str = ""


@dataclass(frozen=True, slots=True)
class StopIt:
    """The pipeline should end, or pause, in this way."""

    KIND: ClassVar[str] = "STOP"
    record_id: str
    mode: StopMode
    session: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """What was suspended should go on."""

    KIND: ClassVar[str] = "RESUME"
    record_id: str
    session: str = ""


@dataclass(frozen=True, slots=True)
class DropPart:
    """A source or consumer should be no more."""

    KIND: ClassVar[str] = "DROP"
    record_id: str
    part: str
    session: str = ""


@dataclass(frozen=True, slots=True)
class RestartPart:
    """All tasks of a source or consumer should start anew, where they are."""

    KIND: ClassVar[str] = "RESTART"
    record_id: str
    part: str
    cause: str
    session: str = ""


@dataclass(frozen=True, slots=True)
class AllowRelease:
    """Data of a stage may go, as far as its consumers have committed."""

    KIND: ClassVar[str] = "ALLOW_RELEASE"
    record_id: str
    stage: str
    upto: dict[str, int] = field(default_factory=dict)
    """Producer -> slot of its log, exclusive; empty: as far as possible."""
    session: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings in the place of those that the pipeline was made with; others as before."""

    KIND: ClassVar[str] = "CONFIGURE"
    record_id: str
    settings: dict[str, int | float]
    session: str = ""


ExternalCommand = (
    Hello
    | InitComplete
    | RunThis
    | StopIt
    | Resume
    | DropPart
    | RestartPart
    | AllowRelease
    | Settings
)
REQUESTS: RecordCodec[ExternalCommand] = RecordCodec(
    (
        Hello,
        InitComplete,
        RunThis,
        StopIt,
        Resume,
        DropPart,
        RestartPart,
        AllowRelease,
        Settings,
    )
)
