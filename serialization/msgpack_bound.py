"""Bounds the memory that decoding takes, before anything is decoded.

msgpack makes room for as many elements as the head of a list states, and an empty map of one byte
becomes an object of 64. So a short forged record could take gigabytes of its reader. It must not
decode values.
"""

from durable_shuffle.serialization.checksum import Bytes

UNCHECKED_BYTES = 4096
"""A payload of so few bytes cannot take much."""

FREE_VALUES = 50_000
BYTES_PER_VALUE = 8
"""What is stored has more bytes per value, names of fields included."""

_SIZES = {
    **dict.fromkeys((0xCA, 0xCE, 0xD2), 5),
    **dict.fromkeys((0xCB, 0xCF, 0xD3), 9),
    **dict.fromkeys((0xCC, 0xD0), 2),
    **dict.fromkeys((0xCD, 0xD1), 3),
    **{0xD4 + power: 2 + (1 << power) for power in range(5)},
}
"""First byte -> bytes of a value of fixed length; 1 where none stands here."""
_COUNTED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4}
"""First byte of binary, text and extensions -> bytes of the length behind it."""
_EXTENSIONS = (0xC7, 0xC8, 0xC9)
_NESTED = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}
"""First byte of lists and maps -> (bytes of the count behind it, values per element)."""


def states_too_many_values(payload: Bytes) -> bool:
    """Return whether msgpack data holds, or only announces, more values than its bytes justify.

    Malformed data may pass; decoding refuses it.
    """
    size = memoryview(payload).nbytes
    if size <= UNCHECKED_BYTES:
        return False
    data = bytes(payload)  # a copy: reading byte by byte takes half as long as from a view
    most = FREE_VALUES + size // BYTES_PER_VALUE
    at = values = 0
    while at < size:
        first = data[at]
        at += 1
        if 0x80 <= first < 0xA0:
            values += (first & 15) * (2 if first < 0x90 else 1)
        elif 0xA0 <= first < 0xC0:
            at += first & 31
        elif first in _COUNTED:
            head = at + _COUNTED[first]
            at = head + int.from_bytes(data[at:head], "big") + (first in _EXTENSIONS)
        elif first in _NESTED:
            width, each = _NESTED[first]
            values += each * int.from_bytes(data[at : at + width], "big")
            at += width
        else:
            at += _SIZES.get(first, 1) - 1
        if values > most:
            return True
    return False
