"""Settings: values a user tunes, frozen and checked once. Nothing here reads the environment."""

from dataclasses import dataclass

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.serialization.frames import MAX_FRAME_BODY_BYTES

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Settings:
    """How much memory producers use and how frames are shaped.

    Raises:
        InvalidInputError: a value is out of its range; the message names it.
    """

    writer_memory_bytes: int = 64 * _MIB
    """Uncompressed Arrow bytes that a producer gathers before it writes a segment. A worker's peak
    is about three times this. Larger segments mean larger frames, which read faster."""

    compression: str = "lz4"
    """Codec of Arrow bodies: "lz4", "zstd" or "none"."""

    frame_bytes: int = 8 * _MIB
    """A frame is cut near this many uncompressed bytes. Inclusive upper aim, not a hard limit: one
    row larger than this still makes one frame."""

    max_frame_bytes: int = MAX_FRAME_BODY_BYTES
    """No frame body may be longer; a longer one on storage is taken for corruption."""

    read_batch_rows: int = 16_384
    """Readers join neighbouring small frames up to about this many rows before handing them on:
    per-batch cost between Python and the JVM is about a millisecond."""

    control_threads: int = 8
    """Threads with which the driver reads control records of many producers."""

    def __post_init__(self) -> None:
        if self.compression not in ("lz4", "zstd", "none"):
            raise InvalidInputError(
                f"settings.compression must be 'lz4', 'zstd' or 'none', found={self.compression!r}"
            )
        for name, low in (
            ("writer_memory_bytes", _MIB // 16),
            ("frame_bytes", 1024),
            ("max_frame_bytes", _MIB),
            ("read_batch_rows", 1),
            ("control_threads", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise InvalidInputError(
                    f"settings.{name} must be an integer of at least {low}, found={value!r}"
                )
