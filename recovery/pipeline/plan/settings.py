"""What a user tunes of a pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from durable_shuffle.recovery.job.restarts import RestartSettings
from durable_shuffle.recovery.job.state import JobTimeouts
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.limits import check_count, check_number
from durable_shuffle.shuffle.base.settings import Settings

TUNABLE = ("append_rows", "append_seconds", "commit_rows", "commit_seconds", "checkpoint_seconds")
"""What can be changed while a pipeline runs; all its tasks change at the same command."""


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Frozen and checked once.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    append_rows: int = 16_384
    """A source appends after this many rows at the latest."""
    append_seconds: float = 0.2
    """And after this time: about how long a row waits before consumers can see it."""
    commit_rows: int = 262_144
    """A consumer commits (publishes, acknowledges) after this many rows at the latest."""
    commit_seconds: float = 1.0
    """And after this time."""
    checkpoint_seconds: float = 0.0
    """How often a source puts a checkpoint marker between its rows; 0: never."""
    heartbeat_seconds: float = 1.0
    """How often a task process says that it lives."""
    silence_seconds: float = 15.0
    """A process that says nothing for so long is killed and started again."""
    request_seconds: float = 0.5
    """How often a coordinator looks for what it is asked for from outside."""
    status_seconds: float = 1.0
    """How often it says how it is, at most; nothing new, nothing said."""
    complaint_seconds: float = 30.0
    """From the first request to start a part anew to the restart."""
    restarts: RestartSettings = field(default_factory=RestartSettings)
    """How often, and after which delays, the job starts its tasks again."""
    timeouts: JobTimeouts = field(default_factory=JobTimeouts)
    """How long a start, and each step of an end, may take."""
    shuffle: Settings = field(default_factory=Settings)
    """Memory, compression and frames of what tasks write and read."""

    def __post_init__(self) -> None:
        check_count("append_rows", self.append_rows, at_least=1)
        check_count("commit_rows", self.commit_rows, at_least=1)
        for name in (
            "append_seconds",
            "commit_seconds",
            "heartbeat_seconds",
            "request_seconds",
            "status_seconds",
        ):
            check_number(name, getattr(self, name), at_least=0, above=True)
        check_number("complaint_seconds", self.complaint_seconds, at_least=0)
        check_number("checkpoint_seconds", self.checkpoint_seconds, at_least=0)
        check_number("silence_seconds", self.silence_seconds, at_least=2 * self.heartbeat_seconds)

    def tuned(self, changed: Mapping[str, int | float]) -> "PipelineSettings":
        """Return these with others in the place of some.

        Raises:
            InvalidInputError: not one of `TUNABLE`, or out of its range.
        """
        if not changed:
            return self
        strange = sorted(set(changed) - set(TUNABLE))
        if strange:
            raise InvalidInputError(
                f"a running pipeline can change {', '.join(TUNABLE)}, found={strange[0]!r}"
            )
        return replace(self, **changed)  # type: ignore[arg-type]
