"""Python objects as frame bodies."""

import collections
import datetime as dt
import math
import struct
import uuid
import zoneinfo
from decimal import Decimal

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.msgpack_codec import decode_records, encode_records

relaxed = settings(deadline=None)
EAST = dt.timezone(dt.timedelta(hours=5, minutes=45, seconds=1))

VALUES = [
    None,
    True,
    0,
    -(2**63),
    2**64 - 1,
    2**64,
    -(2**63) - 1,
    -(2**200),
    1.5,
    -0.0,
    "",
    "grüße",
    b"\x00\xff",
    [1, [2, []]],
    (1, (2, ()), [3, (4,)]),
    {"a": 1, b"b": 2, 3: (4,), None: 5, 1.5: 6, (1, "x"): 7, frozenset({1}): 8},
    {1, "a", (2, 3)},
    frozenset(),
    dt.datetime(1, 1, 1),  # noqa: DTZ001 naive
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999, fold=1),  # noqa: DTZ001 naive
    dt.datetime(1, 1, 1, tzinfo=EAST),
    dt.datetime(2020, 2, 29, 1, 2, 3, 4, tzinfo=dt.UTC),
    dt.date(1, 1, 1),
    dt.date(9999, 12, 31),
    dt.time(0),
    dt.time(23, 59, 59, 999999, fold=1),
    dt.time(1, 2, 3, 4, tzinfo=EAST),
    dt.timedelta.min,
    dt.timedelta.max,
    dt.timedelta(days=-1, seconds=1, microseconds=1),
    Decimal("1.10"),
    Decimal("-0E-50"),
    Decimal("1234567890" * 10),
    Decimal("Infinity"),
    uuid.UUID(int=5),
    np.int8(-5),
    np.uint64(2**64 - 1),
    np.float16(1.5),
    np.float32(0.1),
    np.float64(0.1),
    np.complex128(1 + 2j),
    np.bool_(1),
    np.datetime64("2020-01-01T00:00:00.123", "ns"),
    np.datetime64("NaT"),
    np.datetime64(5, ("us", 25)),
    np.timedelta64(-3, "D"),
    np.timedelta64(3),
    np.str_(""),
    np.str_("grüße"),
    np.bytes_(b"a\0"),
]


def shape(value: object) -> object:
    """The value with its exact types all the way down, comparable also for NaN and -0.0."""
    kind = type(value)
    if isinstance(value, list | tuple):
        return kind, [shape(v) for v in value]
    if isinstance(value, set | frozenset):
        return kind, sorted(repr(shape(v)) for v in value)
    if isinstance(value, dict):
        return kind, [(shape(k), shape(v)) for k, v in value.items()]
    if isinstance(value, np.generic):
        return kind, value.dtype, value.tobytes()
    if isinstance(value, dt.datetime | dt.time):
        return kind, value.replace(tzinfo=None), value.utcoffset(), value.fold
    return kind, repr(value)


@pytest.mark.parametrize(
    "value", [pytest.param(v, id=f"{i} {type(v).__name__}") for i, v in enumerate(VALUES)]
)
def test_value_comes_back_as_the_same_type(value: object) -> None:
    """Alone, and inside a tuple, a list and a map."""
    for record in (value, (value, 1), [value], {"k": value}):
        (found,) = decode_records(encode_records([record]))
        assert shape(found) == shape(record)


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.datetimes(timezones=st.none() | st.timezones().filter(bool), allow_imaginary=False)
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.decimals()
    | st.uuids()
    | st.integers(-128, 127).map(np.int8)
    | st.floats(width=32).map(np.float32)
)
keys = st.none() | st.integers() | st.text() | st.binary() | st.dates() | st.uuids()
hashable = st.recursive(
    keys, lambda k: st.lists(k, max_size=3).map(tuple) | st.frozensets(k), max_leaves=5
)
records = st.recursive(
    scalars,
    lambda v: (
        st.lists(v) | st.lists(v).map(tuple) | st.dictionaries(hashable, v) | st.sets(hashable)
    ),
    max_leaves=10,
)


@relaxed
@given(st.lists(records, max_size=5))
def test_any_records_come_back(values: list[object]) -> None:
    """Types exactly, and values to the last bit."""
    body = encode_records(values)
    assert shape(decode_records(body)) == shape(values)
    assert encode_records(decode_records(body)) == body


def test_body_is_one_plain_msgpack_array() -> None:
    """Any msgpack library can read what has no extension."""
    assert encode_records(["a", 1, {"k": None}]) == b"\x93\xa1a\x01\x81\xa1k\xc0"
    assert encode_records([]) == b"\x90"
    assert decode_records(b"\x90") == []


def test_extension_payloads_are_stable() -> None:
    """Codes and payloads as documented; stored data depends on them."""
    assert encode_records([(1, 2)]) == b"\x91\xc7\x03\x09\x92\x01\x02"
    assert encode_records([dt.date(1, 1, 2)]) == b"\x91\xd6\x03" + struct.pack("<i", 2)
    second = dt.datetime(1970, 1, 1, 0, 0, 1)  # noqa: DTZ001 naive
    assert encode_records([second]) == b"\x91\xc7\x09\x01" + struct.pack("<qB", 1_000_000, 0)
    assert encode_records([2**64]) == b"\x91\xc7\x09\x08" + bytes(8) + b"\x01"
    assert encode_records([np.int16(-2)]) == b"\x91\xc7\x09\x0c\x92\xa3<i2\xc4\x02\xfe\xff"
    assert encode_records([Decimal("1.10")]) == b"\x91\xd6\x061.10"


def test_equal_sets_give_equal_bytes() -> None:
    """Whatever order they were filled in."""
    up, down = set(), set()
    for i in range(0, 80, 8):
        up.add(i)
        down.add(72 - i)
    assert list(up) != list(down)
    assert encode_records([up]) == encode_records([down])


def test_zone_becomes_a_fixed_offset() -> None:
    """The instant and the reading stay, the zone's name does not."""
    zoned = dt.datetime(2024, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    (found,) = decode_records(encode_records([zoned]))
    assert isinstance(found, dt.datetime)
    assert found == zoned
    assert found.tzinfo == dt.timezone(dt.timedelta(hours=2))


class Plain:
    """No type that could be stored."""


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Plain(), "Plain"),
        (Point(1, 2), "Point"),
        (collections.OrderedDict(), "collections.OrderedDict"),
        (np.zeros(3), "numpy.ndarray"),
        (np.longdouble(1), "longdouble|float128"),
        (np.void(b"x"), "V1"),
        (1j, "complex"),
        (range(3), "range"),
        (object, "type"),
        (dt.time(1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")), "no offset from UTC"),
        ("\ud800", "surrogates"),
    ],
)
def test_types_that_cannot_be_stored_are_named(value: object, name: str) -> None:
    """Refused, at any depth; never pickled, never turned into something else."""
    for record in (value, [{"k": (value,)}]):
        with pytest.raises(InvalidInputError, match=name):
            encode_records([record])


def test_nesting_has_a_limit_on_both_sides() -> None:
    """What can be written can be read; deeper is refused, not a crash."""
    for wrap in (lambda v: (v,), lambda v: [v], lambda v: {"k": v}):
        value: object = 0
        for _ in range(31):
            value = wrap(value)
        assert decode_records(encode_records([value])) == [value]
        for _ in range(1000):
            value = wrap(value)
        with pytest.raises(InvalidInputError, match=r"nests|recursion"):
            encode_records([value])
    hostile = b"\x00"
    for _ in range(5000):
        hostile = b"\xc9" + struct.pack(">IB", len(hostile), 9) + hostile
    with pytest.raises(CorruptDataError, match="nested deeper"):
        decode_records(b"\x91" + hostile)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc0",
        b"\x80",
        b"\x91",
        b"\x90\x90",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\x91\xdb\xff\xff\xff\xffabc",
        b"\x91\x81\x90\x01",
        b"\x91\xa1\xff",
        b"\x91" * 3000,
    ],
    ids=lambda b: b[:6].hex() or "empty",
)
def test_bad_bytes_are_corruption(body: bytes) -> None:
    """Cut, trailing, no array, impossible lengths, unhashable keys, bad text, too deep."""
    with pytest.raises(CorruptDataError, match=f"msgpack body of {len(body)} bytes"):
        decode_records(body)


def test_every_cut_is_corruption() -> None:
    """No prefix of a body passes for a body."""
    body = encode_records(VALUES)
    for cut in range(len(body)):
        with pytest.raises(CorruptDataError):
            decode_records(body[:cut])


@pytest.mark.parametrize("code", range(1, 13))
@relaxed
@given(
    payload=st.binary(max_size=40)
    | st.lists(st.text() | st.binary(), max_size=3).map(msgpack.packb)
)
def test_any_extension_payload_gives_a_value_or_our_errors(code: int, payload: bytes) -> None:
    """Also payloads that are msgpack but of the wrong shape."""
    body = msgpack.packb([msgpack.ExtType(code, payload)])
    try:
        (value,) = decode_records(body)
    except (CorruptDataError, IncompatibleError):
        return
    assert not isinstance(value, msgpack.ExtType)


@pytest.mark.parametrize("dtype", ["O", "<V8", "i4,i4", "<f16", ">i4", "object", "<U5", "x"])
def test_numpy_dtypes_outside_the_list_are_corruption(dtype: str) -> None:
    """No objects, no structures, nothing that differs between machines."""
    body = msgpack.packb([msgpack.ExtType(12, msgpack.packb([dtype, bytes(8)]))])
    with pytest.raises(CorruptDataError):
        decode_records(body)


def test_unknown_extension_is_incompatible() -> None:
    """Intact, but from a version that knows more."""
    with pytest.raises(IncompatibleError, match="type 77 is unknown, this version knows 1 to 12"):
        decode_records(msgpack.packb([msgpack.ExtType(77, b"")]))


@relaxed
@given(st.binary(max_size=100))
def test_any_bytes_give_records_or_our_errors(body: bytes) -> None:
    """No other error leaves the decoder."""
    try:
        found = decode_records(body)
    except (CorruptDataError, IncompatibleError):
        return
    assert isinstance(found, list)


def test_nan_stays_nan() -> None:
    """The one value that is not equal to itself."""
    (found,) = decode_records(encode_records([math.nan]))
    assert isinstance(found, float)
    assert math.isnan(found)
