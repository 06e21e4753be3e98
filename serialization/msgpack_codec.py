"""Python objects as frame bodies: one msgpack array of records, or of pairs. Never pickle.

Strategy: msgpack's own types are stored natively, all others as extension types. A value comes back
with the type that it had, or the encoder refuses it and names the type. Equal records give equal
bytes, also for sets.

Exceptions: bytearray and memoryview come back as bytes; an aware datetime or time comes back with
a fixed offset instead of its zone.

Pairs are one flat array [key, value, key, value, …], so that msgpack walks one list in C and no
Python code runs per pair. Parts of a body are packed as pairs arrive, and joined when the number of
pairs is known.

docs/internals/format.md lists the extension types. Codes and payloads are stored, so a code is
never changed or reused. Numbers are little-endian; arrays are msgpack too.
"""

import datetime as dt
import itertools
import re
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from types import MappingProxyType
from typing import Any, TypeAlias, cast

import msgpack  # type: ignore[import-untyped]
import numpy as np

from durable_shuffle.serialization.checksum import Bytes
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    IncompatibleError,
    InvalidInputError,
)

# Tuples and sets are nested encodings. Reading one takes some 40 kB of C stack per level, so the
# depth has a limit that holds for a thread's stack also. Lists and maps nest up to msgpack's 511.
MAX_TUPLE_NESTING = 32

PAIR_CODEC = "msgpack-pairs"
"""The codec's name in DESCRIBE."""

Pair = tuple[Any, Any]


def encode_records(records: Sequence[object]) -> bytes:
    """Return the records as one msgpack array.

    Raises:
        InvalidInputError: a record holds a type that cannot be stored, which is named, or nests
            too deep.
    """
    return _Encoder().encode(list(records), 0)


def decode_records(body: Bytes) -> list[object]:
    """Return the records in `body`.

    No length in the bytes can claim more elements than the body has bytes.

    Raises:
        CorruptDataError: the bytes are not exactly one msgpack array of storable values.
        IncompatibleError: an extension type is unknown to this version.
    """
    size = memoryview(body).nbytes
    try:
        records = _Decoder().decode(body, 0)
    except DurableShuffleError:
        raise
    except _DECODE_ERRORS as error:
        raise CorruptDataError(
            f"msgpack body of {size} bytes: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(records, list):
        raise CorruptDataError(
            f"msgpack body of {size} bytes: expected an array, found {type(records).__name__}"
        )
    return records


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
    head: bytes = msgpack.Packer().pack_array_header(items)
    return head


class _Encoder:
    """One packer per nesting level, since a packer cannot be entered twice."""

    def __init__(self) -> None:
        self._packers: list[msgpack.Packer] = []

    def encode(self, value: object, depth: int) -> bytes:
        if depth > MAX_TUPLE_NESTING:
            raise InvalidInputError(
                f"record nests tuples and sets deeper than {MAX_TUPLE_NESTING} levels"
            )
        if depth == len(self._packers):
            self._packers.append(self._new_packer(depth))
        try:
            encoded: bytes = self._packers[depth].pack(value)
        except DurableShuffleError:
            raise
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            raise InvalidInputError(
                f"record cannot be stored: {type(error).__name__}: {error}"
            ) from error
        return encoded

    def _new_packer(self, depth: int) -> msgpack.Packer:
        def nested(value: object) -> bytes:
            return self.encode(value, depth + 1)

        def default(value: object) -> msgpack.ExtType:
            return _encode_extension(value, nested)

        return msgpack.Packer(default=default, strict_types=True, use_bin_type=True)


class _Decoder:
    """One extension hook per nesting level."""

    def __init__(self) -> None:
        self._hooks: list[Callable[[int, bytes], object]] = []

    def decode(self, data: Bytes, depth: int) -> object:
        if depth > MAX_TUPLE_NESTING:
            raise ValueError(f"nested deeper than {MAX_TUPLE_NESTING} levels")
        if depth == len(self._hooks):
            self._hooks.append(self._new_hook(depth))
        # unpackb bounds every length by that of `data`
        value: object = msgpack.unpackb(
            data, ext_hook=self._hooks[depth], strict_map_key=False, raw=False
        )
        return value

    def _new_hook(self, depth: int) -> Callable[[int, bytes], object]:
        def nested(inner: Bytes) -> object:
            return self.decode(inner, depth + 1)

        def ext_hook(code: int, payload: bytes) -> object:
            return _decode_extension(code, payload, nested)

        return ext_hook


Nested: TypeAlias = Callable[[object], bytes]
NestedDecode: TypeAlias = Callable[[Bytes], object]

_DECODE_ERRORS = (
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


def _encode_extension(value: object, nested: Nested) -> msgpack.ExtType:
    """Return the extension value for a value of a type that msgpack does not have.

    Raises:
        InvalidInputError: the type cannot be stored.
    """
    if isinstance(value, np.generic):
        return msgpack.ExtType(12, _encode_numpy(value, nested))
    kind = type(value)
    if kind is dt.datetime:
        return _encode_datetime(cast("dt.datetime", value))
    entry = _ENCODERS.get(kind)
    if entry is None:
        raise InvalidInputError(
            f"a record cannot hold values of type {kind.__module__}.{kind.__qualname__}"
        )
    code, encode = entry
    return msgpack.ExtType(code, encode(value, nested))


def _decode_extension(code: int, payload: bytes, nested: NestedDecode) -> object:
    """Return the value of an extension; raises _DECODE_ERRORS for a bad payload.

    Raises:
        IncompatibleError: the code is unknown.
    """
    decode = _DECODERS.get(code)
    if decode is None:
        known = f"{min(_DECODERS)} to {max(_DECODERS)}"
        raise IncompatibleError(
            f"msgpack extension type {code} is unknown, this version knows {known}"
        )
    return decode(payload, nested)


def _offset_microseconds(value: dt.datetime | dt.time) -> int:
    offset = value.utcoffset()
    if offset is None:
        raise InvalidInputError(
            f"a record cannot hold {value!r}: its zone gives no offset from UTC"
        )
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
    return _array_head(len(elements)) + b"".join(elements)


def _elements(payload: bytes, nested: NestedDecode) -> list[object]:
    values = nested(payload)
    if not isinstance(values, list):
        raise TypeError(f"expected an array of elements, found {type(values).__name__}")
    return values


def _encode_numpy(value: np.generic, nested: Nested) -> bytes:
    if isinstance(value, np.str_):
        return nested([_TEXT, str(value)])
    if isinstance(value, np.bytes_):
        return nested([_RAW, bytes(value)])
    name = value.dtype.newbyteorder("<").str
    if not _DTYPE.fullmatch(name):
        raise InvalidInputError(f"a record cannot hold numpy scalars of dtype {value.dtype}")
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
        raise ValueError(f"unknown numpy dtype {name!r}")
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
