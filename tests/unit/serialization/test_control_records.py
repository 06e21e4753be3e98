"""The envelope of control records, against bytes put together by hand."""

import struct
import zlib

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_shuffle.serialization.control import decode_control, encode_control
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)

relaxed = settings(deadline=None)
PAYLOAD = b"\x82\xa6fields\x82\xa1a\x01\xa1b\x92\xa1x\xc0\xa4kind\xa6COMMIT"


def envelope(
    payload: bytes,
    *,
    magic: bytes = b"\x89DSC",
    version: int = 2,
    reserved: int = 0,
    extra: int = 0,
) -> bytes:
    """An envelope with a right CRC over whatever it holds."""
    first = magic + struct.pack("<HHI", version, reserved, len(payload) + extra)
    return first + struct.pack("<I", zlib.crc32(first + payload)) + payload


def test_record_is_these_bytes() -> None:
    """Sorted keys, then the envelope around them."""
    data = encode_control("COMMIT", {"b": ("x", None), "a": 1})
    assert data == envelope(PAYLOAD)
    record = decode_control(data, name="slot 3")
    assert (record.kind, record.fields) == ("COMMIT", {"a": 1, "b": ["x", None]})


def test_order_of_keys_does_not_matter() -> None:
    """At any depth."""
    one = encode_control("K", {"x": {"b": [{"d": 1, "c": 2}], "a": 3}, "w": 4})
    other = encode_control("K", {"w": 4, "x": {"a": 3, "b": [{"c": 2, "d": 1}]}})
    assert one == other


def test_every_single_bit_flip_is_corruption() -> None:
    """Anywhere in envelope and payload; version and reserved bits too."""
    good = encode_control("COMMIT", {"a": 1, "b": b"xyz"})
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError, match="slot 3"):
            decode_control(bytes(bad), name="slot 3")


def test_cut_or_longer_record_is_corruption() -> None:
    """Every cut, and a trailing byte."""
    good = encode_control("COMMIT", {"a": 1})
    for bad in (*(good[:cut] for cut in range(len(good))), good + b"\0", good + good):
        with pytest.raises(CorruptDataError, match="slot 3"):
            decode_control(bad, name="slot 3")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (envelope(PAYLOAD, version=3), IncompatibleError, "slot 3: .*expected 2 .*found 3"),
        (envelope(PAYLOAD, version=1), IncompatibleError, "slot 3: .*version 1, .*earlier version"),
        (envelope(PAYLOAD, version=0), IncompatibleError, "version 0, .*run the job again"),
        (envelope(PAYLOAD, reserved=5), IncompatibleError, "reserved 5"),
        (envelope(b"other layout", version=9, extra=3), IncompatibleError, "found 9"),
        (envelope(PAYLOAD, magic=b"\x89DSF"), CorruptDataError, "magic: expected 89445343"),
        (envelope(PAYLOAD, extra=1), CorruptDataError, "payload length: expected"),
        (envelope(b""), CorruptDataError, "payload"),
        (envelope(PAYLOAD + b"\0"), CorruptDataError, "payload"),
        (envelope(b"\x93\x01\x02\x03"), CorruptDataError, "expected a map of kind and fields"),
        (envelope(msgpack.packb({"kind": "K"})), CorruptDataError, "expected a map"),
        (envelope(msgpack.packb({"kind": 1, "fields": {}})), CorruptDataError, "expected a map"),
        (envelope(msgpack.packb({"kind": "K", "fields": [], "x": 1})), CorruptDataError, "map"),
        (
            envelope(msgpack.packb({"kind": "K", "fields": {"a": msgpack.ExtType(9, b"")}})),
            CorruptDataError,
            "extension type 9",
        ),
    ],
)
def test_bad_records_are_told_apart(data: bytes, error: type[Exception], message: str) -> None:
    """Damage is corruption; what is intact and of another version is incompatible."""
    with pytest.raises(error, match=message):
        decode_control(data, name="slot 3")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1: 2}, "map key 1 of type int"),
        ({b"a": 2}, "of type bytes"),
        ({1, 2}, "builtins.set"),
        (2**64, "OverflowError"),
        (object(), "builtins.object"),
        (bytearray(b"x"), "bytearray"),
        ("\ud800", "surrogates"),
    ],
)
def test_values_that_cannot_be_stored_are_refused(value: object, message: str) -> None:
    """Nothing is converted in silence."""
    with pytest.raises(InvalidInputError, match=message):
        encode_control("K", {"x": [value]})


def typed(value: object) -> object:
    """The value with its types, so that True is not 1 and -0.0 is not 0."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value), repr(value)


json_like = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda v: st.lists(v, max_size=4) | st.dictionaries(st.text(), v, max_size=4),
    max_leaves=10,
)


@relaxed
@given(kind=st.text(), fields=st.dictionaries(st.text(), json_like, max_size=4))
def test_any_fields_come_back(kind: str, fields: dict[str, object]) -> None:
    """Values with their types, and the same bytes when encoded again."""
    data = encode_control(kind, fields)
    record = decode_control(data, name="x")
    assert (record.kind, record.fields) == (kind, fields)
    assert typed(record.fields) == typed(fields)
    assert encode_control(record.kind, record.fields) == data


@relaxed
@given(st.binary(max_size=100) | st.binary(max_size=60).map(envelope))
def test_any_bytes_give_a_record_or_our_errors(data: bytes) -> None:
    """No other error leaves the decoder."""
    try:
        record = decode_control(data, name="x")
    except (CorruptDataError, IncompatibleError):
        return
    assert isinstance(record.kind, str)
