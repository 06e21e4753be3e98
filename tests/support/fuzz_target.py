"""What a target of the fuzzer is."""

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from durable_shuffle.serialization import control
from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError

STORED = (CorruptDataError, IncompatibleError)
"""What a decoder of stored bytes may raise."""


@dataclass(frozen=True)
class Target:
    """One decoder."""

    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    allowed: tuple[type[Exception], ...] = STORED
    tree: bool = False
    """Whether inputs are msgpack, to be changed value by value as well."""


def envelope(payload: bytes) -> bytes:
    """Return a control record with right length and CRC around any payload."""
    head = struct.pack("<4sHHI", control.CONTROL_MAGIC, control.CONTROL_VERSION, 0, len(payload))
    return head + struct.pack("<I", zlib.crc32(payload, zlib.crc32(head))) + payload
