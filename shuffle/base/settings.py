"""Settings: values a user tunes, frozen and checked once. Nothing here reads the environment."""

from dataclasses import dataclass

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.serialization.frames import MAX_FRAME_BODY_BYTES

_MIB = 1 << 20

STORAGE_CALL_SECONDS = 180.0
"""How long a call to the storage is tried again by default."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How much memory producers use and how frames are shaped.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    writer_memory_bytes: int = 64 * _MIB
    """Uncompressed Arrow bytes that a producer gathers before it writes a segment. A worker's peak
    is several times this. Larger segments mean larger frames, which read faster."""

    compression: str = "lz4"
    """Codec of Arrow bodies: "lz4", "zstd" or "none"."""

    frame_bytes: int = 8 * _MIB
    """A frame is cut near this many uncompressed bytes. Inclusive upper aim, not a hard limit: one
    row larger than this still makes one frame."""

    max_frame_bytes: int = MAX_FRAME_BODY_BYTES
    """No frame body may be longer; a longer one on storage is taken for corruption."""

    check_offsets: bool = True
    """Whether readers look at every offset of every batch before they hand it out. Only a forged
    body fails this; without it, one can crash the process that reads it. `verify` always looks."""

    read_batch_rows: int = 16_384
    """Readers join neighbouring small frames up to about this many rows before handing them on:
    per-batch cost between Python and the JVM is about a millisecond."""

    view_memory_bytes: int = 128 * _MIB
    """Credit of a view: bytes that it may have fetched and not handed on yet, as stored."""

    view_buffer_bytes: int = 64 * _MIB
    """A view fetches pieces of at most this many bytes; at most half of `view_memory_bytes`. A
    frame that lies in two pieces is copied, so by default a piece holds a whole segment."""

    view_prefetch: bool = True
    """Whether a view fetches the next pieces, in a thread of its own, while one is read."""

    reserve_records: int = 65_536
    """A view that resumes approximately reserves about this many records of a producer before it
    hands out the first of them: about the most that a crash makes it drop."""

    inline_state_bytes: int = 64 * 1024
    """A consumer's state longer than this is an object of its own, not part of its record."""

    follow_first_pause_seconds: float = 0.01
    """A follower that found nothing new of a producer asks again after this; then it doubles."""

    follow_longest_pause_seconds: float = 0.5
    """Upper bound of that pause: an idle follower sends one small read per producer in this time,
    and sees what comes after a silence at most this much later."""

    read_together_bytes: int = 16 * _MIB
    """Uncompressed Arrow bytes that one reduce task reads at least: small neighbouring partitions
    are read by one task, the reducer called for each. 0: always one partition per task."""

    result_least_bytes: int = 32 * _MIB
    """The rows of a query that ends in an aggregation of joined exchanges are stored too if these
    hold at least so many bytes, as stored: a killed driver would lose a long last step."""

    compact_small_bytes: int = 0
    """Extents of at most this many bytes are rewritten next to each other when a stage is sealed
    (`shuffle/repair/compaction.py`). 0: not; `durable-shuffle compact` does it later."""

    reduce_memory_bytes: int = 64 * _MIB
    """Uncompressed Arrow bytes that a sorting or grouping reducer holds before it writes them to
    local scratch space. Its peak is several times this."""

    ack_rows: int = 1 << 20
    """A resumable reducer acknowledges after this many rows at the latest: what a crash makes it
    read again. Each acknowledgement stores its state."""

    ack_seconds: float = 5.0
    """And after this time, once the batch at hand is done."""

    winner_wait_seconds: float = 60.0
    """How long a fenced attempt waits without seeing the winner get on, before it takes over."""

    scratch_folder: str | None = None
    """Local folder for what does not fit into memory; None: the system's for temporary files."""

    storage_call_seconds: float = STORAGE_CALL_SECONDS
    """How long one call to a storage that does not answer, or is busy, is tried again before it
    fails with UnavailableError, or OutcomeUnknownError if it may have taken effect."""

    control_threads: int = 8
    """Threads with which the driver reads control records of many producers."""

    def __post_init__(self) -> None:
        if self.compression not in ("lz4", "zstd", "none"):
            raise InvalidInputError(
                f"settings.compression must be 'lz4', 'zstd' or 'none', found={self.compression!r}"
            )
        if not isinstance(self.check_offsets, bool):
            raise InvalidInputError(
                f"settings.check_offsets must be a bool, found={self.check_offsets!r}"
            )
        for name, low in (
            ("writer_memory_bytes", _MIB // 16),
            ("reduce_memory_bytes", _MIB // 16),
            ("frame_bytes", 1024),
            ("max_frame_bytes", _MIB),
            ("read_batch_rows", 1),
            ("view_memory_bytes", 2),
            ("view_buffer_bytes", 1),
            ("reserve_records", 1),
            ("inline_state_bytes", 0),
            ("read_together_bytes", 0),
            ("result_least_bytes", 0),
            ("compact_small_bytes", 0),
            ("ack_rows", 1),
            ("control_threads", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise InvalidInputError(
                    f"settings.{name} must be an integer of at least {low}, found={value!r}"
                )
        for name in ("ack_seconds", "winner_wait_seconds", "storage_call_seconds"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not value > 0:
                raise InvalidInputError(f"settings.{name} must be above 0, found={value!r}")
        if 2 * self.view_buffer_bytes > self.view_memory_bytes:
            raise InvalidInputError(
                "settings.view_buffer_bytes must be at most half of view_memory_bytes, "
                f"found={self.view_buffer_bytes} of {self.view_memory_bytes}"
            )
        first, longest = self.follow_first_pause_seconds, self.follow_longest_pause_seconds
        if not all(type(v) in (int, float) for v in (first, longest)) or not 0 < first <= longest:
            raise InvalidInputError(
                "settings.follow_first_pause_seconds must be above 0 and at most "
                f"follow_longest_pause_seconds, found={first!r} and {longest!r}"
            )
