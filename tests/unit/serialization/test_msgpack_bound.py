"""A forged control record takes no more memory than its bytes justify."""

import struct
import tracemalloc
from unittest.mock import patch

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_shuffle.serialization import msgpack_bound
from durable_shuffle.serialization.checksum import crc32
from durable_shuffle.serialization.control import CONTROL_MAGIC, CONTROL_VERSION, decode_control
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.serialization.msgpack_bound import UNCHECKED_BYTES


def forged(value: bytes) -> bytes:
    """An intact record whose only field is `value`."""
    payload = b"\x82\xa6fields\x81\xa1x" + value + b"\xa4kind\xa5CLAIM"
    head = struct.pack("<4sHHI", CONTROL_MAGIC, CONTROL_VERSION, 0, len(payload))
    return head + struct.pack("<I", crc32(payload, crc32(head))) + payload


MANY = 1 << 20


@pytest.mark.parametrize(
    "value",
    [
        b"\xdd" + struct.pack(">I", MANY) + b"\x80" * MANY,
        b"\xdd" + struct.pack(">I", 4) + (b"\xdd" + struct.pack(">I", MANY) + b"\xc0" * MANY) * 4,
        (b"\xdd" + struct.pack(">I", MANY)) * 400 + b"\xc6" + struct.pack(">I", MANY) + bytes(MANY),
        b"\xdf" + struct.pack(">I", MANY) + b"\x01\x80" * MANY,
    ],
    ids=["empty maps", "lists of nothing", "lists that announce", "a map"],
)
def test_a_forged_record_is_refused_before_it_is_decoded(value: bytes) -> None:
    """The error comes without the memory that decoding would take."""
    record = forged(value)
    tracemalloc.start()
    with pytest.raises(CorruptDataError, match="more values than its bytes justify"):
        decode_control(record, name="x")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 * len(record) + 1_000_000


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text()
    | st.binary(max_size=400),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=40), inner),
)


def nested(value: object) -> int:
    """How many values stand in lists and maps; the keys of maps, too."""
    if isinstance(value, dict):
        return sum(2 + nested(inner) for inner in value.values())
    return sum(1 + nested(inner) for inner in value) if isinstance(value, list) else 0


@settings(max_examples=40)
@given(VALUES)
def test_the_walk_counts_what_msgpack_writes(value: object) -> None:
    """No value is taken for the head of another one."""
    value = [bytes(UNCHECKED_BYTES), value]
    packed, count = msgpack.packb(value), nested(value)
    with patch.multiple(msgpack_bound, BYTES_PER_VALUE=10**9, FREE_VALUES=count):
        assert not msgpack_bound.states_too_many_values(packed)
    with patch.multiple(msgpack_bound, BYTES_PER_VALUE=10**9, FREE_VALUES=count - 1):
        assert msgpack_bound.states_too_many_values(packed)
