"""Settings: values that a user tunes, frozen and checked once; and the checks of numbers.

They do not read the environment.
"""

import math
from dataclasses import dataclass

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.serialization.frames import MAX_FRAME_BODY_BYTES

_MIB = 1 << 20

STORAGE_CALL_SECONDS = 180.0
"""How long a failing storage call is retried by default."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Memory, sizes, times and threads that a user may tune.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    writer_memory_bytes: int = 64 * _MIB
    """Uncompressed Arrow bytes that a producer gathers before it writes a segment. The peak memory
    of a worker is several times this. Larger segments have larger frames, which read faster."""

    compression: str = "lz4"
    """Codec of Arrow bodies: "lz4", "zstd" or "none"."""

    frame_bytes: int = 8 * _MIB
    """Target size of a frame in uncompressed bytes. It is no hard limit: a single row larger than
    this still makes one frame."""

    max_frame_bytes: int = MAX_FRAME_BODY_BYTES
    """Longest frame body. A reader treats a longer body as corruption."""

    check_offsets: bool = True
    """Whether readers check every offset of a batch before they hand it out. Only a forged body
    fails this check; without it, such a body can crash the reading process. `verify` always
    checks."""

    read_batch_rows: int = 16_384
    """Readers join small adjacent frames up to about this many rows before they hand them on,
    because each batch between Python and the JVM costs about a millisecond."""

    view_memory_bytes: int = 128 * _MIB
    """Stored bytes that a view may have fetched but not handed out yet."""

    view_buffer_bytes: int = 64 * _MIB
    """Longest piece that a view fetches, at most half of `view_memory_bytes`. A frame in two pieces
    must be copied, so by default a piece is as large as a segment."""

    view_prefetch: bool = True
    """Whether a thread of the view fetches the next pieces while one is read."""

    reserve_records: int = 65_536
    """A view with approximate resume reserves about this many records of a producer before it hands
    out the first of them. A crash makes it drop at most about as many."""

    inline_state_bytes: int = 64 * 1024
    """Longest consumer state that is stored inside its record. A longer state is its own object."""

    follow_first_pause_seconds: float = 0.01
    """First pause of a follower that found nothing new from a producer. Each further pause is twice
    as long."""

    follow_longest_pause_seconds: float = 0.5
    """Longest such pause. An idle follower sends one small read per producer and pause, and sees
    new records at most this much later."""

    read_together_bytes: int = 16 * _MIB
    """Minimum uncompressed Arrow bytes per reduce task: one task reads several small adjacent
    partitions and calls the reducer for each. 0 means one partition per task."""

    result_least_bytes: int = 32 * _MIB
    """If a query ends in an aggregation of joined exchanges, and those exchanges hold at least this
    many stored bytes, the rows of the result are stored too. Otherwise a killed driver would lose a
    long last step."""

    compact_small_bytes: int | None = None
    """Longest extent, in bytes, that is rewritten next to others when a stage is sealed
    (`shuffle/repair/compaction.py`). What is rewritten is stored twice. None: 128 KiB, on an object
    store only, for stages of 32 producers and more whose extents have at most 64 KiB on average. 0
    disables this; `durable-shuffle compact` may be run later instead."""

    reduce_memory_bytes: int = 64 * _MIB
    """Uncompressed Arrow bytes that a sorting or grouping reducer holds before it writes them to
    local scratch space. Its peak memory is several times this."""

    ack_rows: int = 1 << 20
    """Most rows between two acknowledgements of a resumable reducer, and so the most that it reads
    again after a crash. Each acknowledgement stores its state."""

    ack_seconds: float = 5.0
    """Time after which a resumable reducer acknowledges, as soon as it has finished a batch."""

    winner_wait_seconds: float = 60.0
    """How long a fenced attempt waits while the winner makes no progress, before it takes over."""

    scratch_folder: str | None = None
    """Local folder for rows that do not fit into memory; None for the system's temporary folder."""

    storage_call_seconds: float = STORAGE_CALL_SECONDS
    """How long a call is retried while the storage is busy or does not answer. Then it fails with
    UnavailableError, or with OutcomeUnknownError if it may have taken effect."""

    control_threads: int = 8
    """Threads with which the driver reads control records of many producers."""

    heal: bool = True
    """Whether a driver mends a stage by itself in which a reader met missing or damaged data: it
    checks the stage, restores the data from copies, or runs the producers concerned again. Without
    it, readers fail until `durable-shuffle verify --repair` has run."""

    purge_seconds: float = 7 * 86_400.0
    """How long the logs of a released stage stay after its data is gone, so that a late writer
    learns of the release. No process, and no request on its way, may outlive its stage by this
    time: raise it if your jobs can stand still for days. The job's own log keeps the records of
    runs that began within this time, for people: a driver that stood still for longer learns it."""

    def __post_init__(self) -> None:
        if self.compression not in ("lz4", "zstd", "none"):
            raise InvalidInputError(
                f"settings.compression must be 'lz4', 'zstd' or 'none', found={self.compression!r}"
            )
        for name in ("check_offsets", "heal"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidInputError(
                    f"settings.{name} must be a bool, found={getattr(self, name)!r}"
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
            ("ack_rows", 1),
            ("control_threads", 1),
        ):
            check_count(f"settings.{name}", getattr(self, name), at_least=low)
        if self.compact_small_bytes is not None:
            check_count("settings.compact_small_bytes", self.compact_small_bytes, at_least=0)
        for name in ("ack_seconds", "winner_wait_seconds", "storage_call_seconds", "purge_seconds"):
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


def check_number(
    name: str, value: object, *, at_least: float, at_most: float = math.inf, above: bool = False
) -> None:
    """Refuse a value that is not a finite number in [at_least, at_most].

    A bool is no number.

    Args:
        name: for the message.
        above: whether `at_least` itself is refused too.

    Raises:
        InvalidInputError: the message names the value.
    """
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if good and isinstance(value, int | float):
        good = (value > at_least if above else value >= at_least) and value <= at_most
    if not good:
        bound = f"above {at_least}" if above else f"of at least {at_least}"
        limit = "" if at_most == math.inf else f" and at most {at_most}"
        raise InvalidInputError(f"{name} must be a finite number {bound}{limit}, found={value!r}")


def check_count(name: str, value: object, *, at_least: int) -> None:
    """Refuse a value that is not an integer of at least `at_least`. A bool is no integer.

    Raises:
        InvalidInputError: the message names the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidInputError(
            f"{name} must be an integer of at least {at_least}, found={value!r}"
        )
