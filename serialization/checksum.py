"""The one checksum of everything on storage: CRC-32 as in the standard library's zlib.

zlib-ng computes the same sum several times faster (measured: 84 MB in 4 ms against 20 ms) and is
used where it is installed.

Strategy: a frame's body CRC starts from a seed that is computed from the frame's address. Intact
bytes of another address then fail the check.

A CRC detects accidental damage, not forgery.
"""

import struct
from typing import TypeAlias

from durable_shuffle.serialization.errors import InvalidInputError

try:
    from zlib_ng.zlib_ng import crc32 as _crc32
except ImportError:  # the extra "fast" is not installed
    from zlib import crc32 as _crc32

Bytes: TypeAlias = bytes | bytearray | memoryview

_ADDRESS = struct.Struct("<16sIIQ")
_STAGE_ID_DIGITS = 32


def crc32(data: Bytes, value: int = 0) -> int:
    """Return the unsigned CRC-32 of `data`; `value` is the CRC of the bytes before it."""
    return _crc32(data, value)


def frame_seed(stage_id: str, producer: int, subpartition: int, first_ordinal: int) -> int:
    """Return the initial value of the body CRC of one frame.

    It is the CRC-32 of a fixed 32-byte packing, little-endian: the 16 bytes of `stage_id`,
    `producer` and `subpartition` as u32, `first_ordinal` as u64. Two addresses share a seed with
    probability 2**-32; two frames with different seeds never pass for each other.

    Args:
        stage_id: 32 hexadecimal digits.
        producer: number of the producer, from 0.
        subpartition: number of the subpartition, from 0.
        first_ordinal: ordinal of the frame's first record within its subpartition, from 0.

    Raises:
        InvalidInputError: a value does not fit its field.
    """
    try:
        address = _ADDRESS.pack(_stage_bytes(stage_id), producer, subpartition, first_ordinal)
    except (struct.error, ValueError) as error:
        raise InvalidInputError(
            f"frame address does not fit its fields: stage={stage_id!r} producer={producer} "
            f"subpartition={subpartition} first_ordinal={first_ordinal}: {error}"
        ) from error
    return crc32(address)


def _stage_bytes(stage_id: str) -> bytes:
    if len(stage_id) != _STAGE_ID_DIGITS:
        raise ValueError(
            f"expected {_STAGE_ID_DIGITS} hexadecimal digits, found {len(stage_id)} characters"
        )
    raw = bytes.fromhex(stage_id)
    if len(raw) * 2 != _STAGE_ID_DIGITS:
        raise ValueError("the stage id holds white space")
    return raw
