"""The msgpack extension types: their Python types and payloads.

Strategy: one table from exact type to encoder, one from code to decoder. Codes and payloads are
stored, so a code is never changed or reused. Numbers are little-endian. Payloads that contain
values (tuples, sets) are msgpack too; the caller passes the function that encodes or decodes them.

    1 naive datetime    i64 microseconds since 1970-01-01 00:00 in its own local time, u8 fold
    2 aware datetime    as 1, then i64 offset from UTC in microseconds
    3 date              i32 days, 1 is 0001-01-01
    4 time              i64 microseconds since midnight, u8 fold, then nothing or i64 offset
    5 timedelta         i32 days, i32 seconds, i32 microseconds
    6 Decimal           its text
    7 UUID              16 bytes, big-endian as usual
    8 int over 64 bits  two's complement, little-endian
    9 tuple             array
    10 set              array, in the order of the elements' bytes
    11 frozenset        as 10
    12 numpy scalar     array of its dtype's name and its bytes
"""

import datetime as dt
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import TypeAlias, cast

import msgpack  # type: ignore[import-untyped]
import numpy as np

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError

Nested: TypeAlias = Callable[[object], bytes]
NestedDecode: TypeAlias = Callable[[Bytes], object]

DECODE_ERRORS = (
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    RecursionError,
    struct.error,
    InvalidOperation,
)
"""What msgpack and the decoders below raise for bad bytes."""

_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 naive on purpose: local readings are counted from it
_MICROSECOND = dt.timedelta(microseconds=1)
_NAIVE = struct.Struct("<qB")
_AWARE = struct.Struct("<qBq")
_DATE = struct.Struct("<i")
_TIMEDELTA = struct.Struct("<iii")
# no objects, no structures, and no long doubles, whose layout differs between machines
_DTYPE = re.compile(r"[<|](?:b1|[iu][1248]|f[248]|c8|c16|[mM]8(?:\[[0-9]{0,9}[A-Za-z]{1,2}\])?)")
_TEXT = "U"
_RAW = "S"


def encode_extension(value: object, nested: Nested) -> msgpack.ExtType:
    """Return the extension value for a value of a type that msgpack does not have.

    Raises:
        InvalidInputError: the type cannot be stored.
    """
    if isinstance(value, np.generic):
        return msgpack.ExtType(12, _encode_numpy(value, nested))
    kind = type(value)
    if kind is dt.datetime:
        return _encode_datetime(cast("dt.datetime", value))
    found = _ENCODERS.get(kind)
    if found is None:
        msg = f"a record cannot hold values of type {kind.__module__}.{kind.__qualname__}"
        raise InvalidInputError(msg)
    code, encode = found
    return msgpack.ExtType(code, encode(value, nested))


def decode_extension(code: int, payload: bytes, nested: NestedDecode) -> object:
    """Return the value of an extension; raises DECODE_ERRORS for a bad payload.

    Raises:
        IncompatibleError: the code is unknown.
    """
    decode = _DECODERS.get(code)
    if decode is None:
        known = f"{min(_DECODERS)} to {max(_DECODERS)}"
        msg = f"msgpack extension type {code} is unknown, this version knows {known}"
        raise IncompatibleError(msg)
    return decode(payload, nested)


def _offset_microseconds(value: dt.datetime | dt.time) -> int:
    offset = value.utcoffset()
    if offset is None:
        msg = f"a record cannot hold {value!r}: its zone gives no offset from UTC"
        raise InvalidInputError(msg)
    return offset // _MICROSECOND


def _zone(offset_microseconds: int) -> dt.timezone:
    return dt.timezone(dt.timedelta(microseconds=offset_microseconds))


def _encode_datetime(value: dt.datetime) -> msgpack.ExtType:
    local = (value.replace(tzinfo=None) - _EPOCH) // _MICROSECOND
    if value.tzinfo is None:
        return msgpack.ExtType(1, _NAIVE.pack(local, value.fold))
    return msgpack.ExtType(2, _AWARE.pack(local, value.fold, _offset_microseconds(value)))


def _decode_naive(payload: bytes, _: NestedDecode) -> dt.datetime:
    local, fold = _NAIVE.unpack(payload)
    return (_EPOCH + dt.timedelta(microseconds=local)).replace(fold=fold)


def _decode_aware(payload: bytes, _: NestedDecode) -> dt.datetime:
    local, fold, offset = _AWARE.unpack(payload)
    value = _EPOCH + dt.timedelta(microseconds=local)
    return value.replace(fold=fold, tzinfo=_zone(offset))


def _encode_time(value: dt.time) -> bytes:
    seconds = value.hour * 3600 + value.minute * 60 + value.second
    micros = seconds * 1_000_000 + value.microsecond
    if value.tzinfo is None:
        return _NAIVE.pack(micros, value.fold)
    return _AWARE.pack(micros, value.fold, _offset_microseconds(value))


def _decode_time(payload: bytes, _: NestedDecode) -> dt.time:
    if len(payload) == _NAIVE.size:
        micros, fold = _NAIVE.unpack(payload)
        zone = None
    else:
        micros, fold, offset = _AWARE.unpack(payload)
        zone = _zone(offset)
    seconds, micros = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    return dt.time(minutes // 60, minutes % 60, second, micros, tzinfo=zone, fold=fold)


def _encode_integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)


def _sorted_elements(value: set[object] | frozenset[object], nested: Nested) -> bytes:
    elements = sorted(nested(element) for element in value)
    header: bytes = msgpack.Packer().pack_array_header(len(elements))
    return header + b"".join(elements)


def _elements(payload: bytes, nested: NestedDecode) -> list[object]:
    values = nested(payload)
    if not isinstance(values, list):
        msg = f"expected an array of elements, found {type(values).__name__}"
        raise TypeError(msg)
    return values


def _encode_numpy(value: np.generic, nested: Nested) -> bytes:
    if isinstance(value, np.str_):
        return nested([_TEXT, str(value)])
    if isinstance(value, np.bytes_):
        return nested([_RAW, bytes(value)])
    name = value.dtype.newbyteorder("<").str
    if not _DTYPE.fullmatch(name):
        msg = f"a record cannot hold numpy scalars of dtype {value.dtype}"
        raise InvalidInputError(msg)
    return nested([name, value.astype(name).tobytes()])


def _decode_numpy(payload: bytes, nested: NestedDecode) -> np.generic:
    name, raw = _elements(payload, nested)
    if name == _TEXT and isinstance(raw, str):
        return np.str_(raw)
    if not isinstance(raw, bytes) or not isinstance(name, str):
        raise TypeError("a numpy scalar needs a dtype's name and bytes")
    if name == _RAW:
        return np.bytes_(raw)
    if not _DTYPE.fullmatch(name):
        msg = f"unknown numpy dtype {name!r}"
        raise ValueError(msg)
    (value,) = np.frombuffer(raw, dtype=name)
    native: np.generic = value
    return native


_Encode: TypeAlias = Callable[..., bytes]
_ENCODERS: Mapping[type, tuple[int, _Encode]] = MappingProxyType(
    {
        dt.date: (3, lambda value, _: _DATE.pack(value.toordinal())),
        dt.time: (4, lambda value, _: _encode_time(value)),
        dt.timedelta: (
            5,
            lambda value, _: _TIMEDELTA.pack(value.days, value.seconds, value.microseconds),
        ),
        Decimal: (6, lambda value, _: str(value).encode()),
        uuid.UUID: (7, lambda value, _: value.bytes),
        int: (8, lambda value, _: _encode_integer(value)),
        tuple: (9, lambda value, nested: nested(list(value))),
        set: (10, _sorted_elements),
        frozenset: (11, _sorted_elements),
    }
)
_DECODERS: Mapping[int, Callable[[bytes, NestedDecode], object]] = MappingProxyType(
    {
        1: _decode_naive,
        2: _decode_aware,
        3: lambda payload, _: dt.date.fromordinal(*_DATE.unpack(payload)),
        4: _decode_time,
        5: lambda payload, _: dt.timedelta(*_TIMEDELTA.unpack(payload)),
        6: lambda payload, _: Decimal(payload.decode()),
        7: lambda payload, _: uuid.UUID(bytes=payload),
        8: lambda payload, _: int.from_bytes(payload, "little", signed=True),
        9: lambda payload, nested: tuple(_elements(payload, nested)),
        10: lambda payload, nested: set(_elements(payload, nested)),
        11: lambda payload, nested: frozenset(_elements(payload, nested)),
        12: _decode_numpy,
    }
)
