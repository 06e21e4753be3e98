"""Key-value pairs as frame bodies: one msgpack array [key, value, key, value, …]. Never pickle.

Strategy: one flat array, so that msgpack walks one list in C and no Python code runs per pair.
Keys and values may have the types of `msgpack_codec`. Parts of a body are packed as pairs arrive,
and joined when the number of pairs is known.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.msgpack_codec import decode_records, encode_records

PAIR_CODEC = "msgpack-pairs"
"""The codec's name in DESCRIBE."""

Pair = tuple[Any, Any]


def pack_pairs(pairs: Sequence[Pair]) -> bytes:
    """Return the pairs packed one after the other, without the array around them.

    Args:
        pairs: sequences of exactly two items; the caller must check this.

    Raises:
        InvalidInputError: a key or value holds a type that cannot be stored, which is named.
    """
    flat = list(itertools.chain.from_iterable(pairs))
    packed = encode_records(flat)
    return packed[len(_array_head(len(flat))) :]


def pairs_body(parts: Sequence[bytes], pairs: int) -> bytes:
    """Return the body that holds these parts, `pairs` pairs in all."""
    return b"".join([_array_head(2 * pairs), *parts])


def unpack_pairs(body: Bytes, pairs: int) -> Iterator[Pair]:
    """Return the pairs of a body.

    Raises:
        CorruptDataError: not an array of `pairs` keys with their values.
        IncompatibleError: an extension type is unknown to this version.
    """
    flat = decode_records(body)
    if len(flat) != 2 * pairs:
        raise CorruptDataError(
            f"msgpack body of pairs: expected {2 * pairs} items, found {len(flat)}"
        )
    items = iter(flat)
    return zip(items, items, strict=True)


def _array_head(items: int) -> bytes:
    """Return the bytes with which msgpack begins an array."""
    if items < 16:
        return bytes([0x90 | items])
    if items < 1 << 16:
        return b"\xdc" + items.to_bytes(2, "big")
    return b"\xdd" + items.to_bytes(4, "big")
