"""The settings of a pipeline: one flat class, checked once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from durable_shuffle.recovery.job.restarts import RestartSettings
from durable_shuffle.recovery.job.starts import JobTimeouts
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings, check_count, check_number

_RESTARTS: Final = RestartSettings()
_TIMEOUTS: Final = JobTimeouts()
_SHUFFLE: Final = Settings()
TUNABLE = (
    "append_rows", "append_seconds", "longest_append_seconds", "commit_rows", "commit_seconds",
    "longest_commit_seconds", "checkpoint_seconds",
)  # fmt: skip
"""Settings that can change while a pipeline runs; all its tasks change at the same command."""


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The settings of a pipeline. Immutable; checked once.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    append_rows: int = 16_384
    """A source appends after at most this many rows."""
    append_seconds: float = 0.2
    """Shortest time that a row waits for others before it is appended."""
    longest_append_seconds: float = 30.0
    """While appends have few rows, the time between two of them doubles up to this."""
    commit_rows: int = 262_144
    """A consumer commits (publishes, acknowledges) after at most this many rows."""
    commit_seconds: float = 1.0
    """Shortest time between two commits of fewer rows."""
    longest_commit_seconds: float = 60.0
    """While commits have few rows, the time between two of them doubles up to this."""
    checkpoint_seconds: float = 0.0
    """How often a source writes a checkpoint marker between its rows; 0: never."""
    heartbeat_seconds: float = 1.0
    """How often a task process reports that it is alive."""
    silence_seconds: float = 15.0
    """A process without a report for so long is killed and started again."""
    progress_seconds: float = 600.0
    """A step or sink that takes longer for one batch, or for one commit, counts as hung: its task
    is started again. 0: never."""
    request_seconds: float = 0.5
    """How often a coordinator looks for requests from outside."""
    status_seconds: float = 1.0
    """The shortest time between two statuses; a status is written only if something has changed."""
    complaint_seconds: float = 30.0
    """Time from the first complaint of a part to its restart."""
    release_seconds: float = 600.0
    """How often rows are deleted that all consumers have committed; 0: never."""
    takeover_seconds: float = 90.0
    """An instance that stands by takes over after so long without a sign of life of the leader."""
    max_restarts: int = _RESTARTS.max_restarts
    """Of one task in a row, or of starts in a row that did not succeed, without `healthy_seconds`
    between them; -1: no limit."""
    first_restart_seconds: float = _RESTARTS.first_delay_seconds
    """Before the first restart; doubles from one to the next."""
    longest_restart_seconds: float = _RESTARTS.cap_seconds
    """Longest time before a restart."""
    restart_jitter: float = _RESTARTS.jitter
    """Share of these times that is random, 0 to 1."""
    healthy_seconds: float = _RESTARTS.healthy_seconds
    """After running for so long the restarts are counted anew."""
    outage_seconds: float = _RESTARTS.outage_seconds
    """Restarts because the storage does not answer do not count, for so long."""
    start_seconds: float = _TIMEOUTS.start_seconds
    """From a launch until all tasks that start together have started."""
    start_tries: int = _TIMEOUTS.start_tries
    """Starts in a row that may take too long."""
    stop_seconds: float = _TIMEOUTS.stop_seconds
    """For each step of a task's end; a tenth of it for a CANCEL, and for `close()`."""
    spark_heartbeat_seconds: float = 12.0
    """On Spark: how often a task without other reports says that it is alive."""
    spark_silence_seconds: float = 60.0
    """On Spark: a task without a report for so long counts as lost, and a task that nobody reads
    ends after about the same time."""
    spark_command_seconds: float = 1.5
    """On Spark: how often an idle task looks for commands."""
    compression: str = _SHUFFLE.compression
    """Of the rows between tasks: "lz4", "zstd" or "none"."""
    writer_memory_bytes: int = _SHUFFLE.writer_memory_bytes
    """Uncompressed rows that a writing task gathers at most before it writes them."""
    view_memory_bytes: int = _SHUFFLE.view_memory_bytes
    """Stored bytes that a consumer task has fetched and not taken at most."""
    follow_longest_pause_seconds: float = _SHUFFLE.follow_longest_pause_seconds
    """How late an idle consumer sees new rows, at most."""
    storage_call_seconds: float = _SHUFFLE.storage_call_seconds
    """How long a failing call of the storage is tried again before a task fails."""

    def __post_init__(self) -> None:
        check_count("append_rows", self.append_rows, at_least=1)
        check_count("commit_rows", self.commit_rows, at_least=1)
        for name in (
            "append_seconds",
            "longest_append_seconds",
            "commit_seconds",
            "longest_commit_seconds",
            "heartbeat_seconds",
            "request_seconds",
            "status_seconds",
            "takeover_seconds",
        ):
            check_number(name, getattr(self, name), at_least=0, above=True)
        check_number("complaint_seconds", self.complaint_seconds, at_least=0)
        check_number("release_seconds", self.release_seconds, at_least=0)
        check_number("progress_seconds", self.progress_seconds, at_least=0)
        check_number("checkpoint_seconds", self.checkpoint_seconds, at_least=0)
        check_number("silence_seconds", self.silence_seconds, at_least=2 * self.heartbeat_seconds)
        check_number("start_seconds", self.start_seconds, at_least=0, above=True)
        check_number("stop_seconds", self.stop_seconds, at_least=0, above=True)
        check_count("start_tries", self.start_tries, at_least=1)
        _ = self.restarts, self.shuffle

    @property
    def restarts(self) -> RestartSettings:
        """How often, and after which delays, the job restarts its tasks."""
        return RestartSettings(
            self.max_restarts,
            self.first_restart_seconds,
            self.longest_restart_seconds,
            self.restart_jitter,
            self.healthy_seconds,
            self.outage_seconds,
        )

    @property
    def timeouts(self) -> JobTimeouts:
        """How long a start, and each step of an end, may take."""
        return JobTimeouts(self.start_seconds, self.start_tries, self.stop_seconds)

    @property
    def shuffle(self) -> Settings:
        """The settings of the data between tasks."""
        longest = self.follow_longest_pause_seconds
        return Settings(
            compression=self.compression,
            writer_memory_bytes=self.writer_memory_bytes,
            view_memory_bytes=self.view_memory_bytes,
            view_buffer_bytes=min(_SHUFFLE.view_buffer_bytes, self.view_memory_bytes // 2),
            follow_first_pause_seconds=min(_SHUFFLE.follow_first_pause_seconds, longest),
            follow_longest_pause_seconds=longest,
            storage_call_seconds=self.storage_call_seconds,
        )

    @property
    def close_seconds(self) -> float:
        """How long `close()` of a source, step or sink may take."""
        return self.stop_seconds / 10

    def tuned(self, changed: Mapping[str, int | float]) -> "PipelineSettings":
        """Return the settings with some values replaced.

        Raises:
            InvalidInputError: a setting is not in `TUNABLE`, or a value is out of its range.
        """
        if not changed:
            return self
        strange = sorted(set(changed) - set(TUNABLE))
        if strange:
            raise InvalidInputError(
                f"a running pipeline can change {', '.join(TUNABLE)}, found={strange[0]!r}"
            )
        return replace(self, **changed)  # type: ignore[arg-type]
