"""Control records: the small, versioned, checksummed values that logs and indexes are made of.

Strategy: a 16-byte envelope, then msgpack in one canonical form (map keys sorted). So equal records
have equal bytes, and a writer recognises its own record by comparing bytes.

    magic "\\x89DSC", version u16, reserved u16, payload length u32, CRC-32 u32 of all the rest

The positions of magic, version and CRC are the same in all versions. So the CRC is checked before
the version: a flipped bit is reported as corruption, and an intact record of another version as
such.

A record that is stored as an object is `bound` to the object's key: at another key, its intact
bytes fail the CRC.

On top, `RecordCodec` maps frozen dataclasses to records, by their field types.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgpack  # type: ignore[import-untyped]

from durable_shuffle.serialization.checksum import Bytes, crc32
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.field_types import FieldError, RecordType, RefusedValue
from durable_shuffle.serialization.msgpack_bound import states_too_many_values

CONTROL_MAGIC = b"\x89DSC"
CONTROL_VERSION = 2
CONTROL_HEADER_BYTES = 16

_CHECKED = struct.Struct("<4sHHI")  # magic, version, reserved, payload length; the CRC follows
_CRC = struct.Struct("<I")

MAX_CONTROL_BYTES = 64 << 20
"""Limit on a record's size. Readers check an object's length before they allocate memory for it."""

_FIRST_BOUND = 2  # the first version whose records are bound to a place
_SCALARS = (str, int, bool, bytes, float, type(None))

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ControlRecord:
    """A decoded record, not yet checked against a record class."""

    kind: str
    fields: dict[str, Any]
    """Values are None, bool, int, float, str, bytes, and lists and str-keyed dicts of these."""


def encode_control(kind: str, fields: Mapping[str, object]) -> bytes:
    """Return the record as bytes; equal arguments give equal bytes, whatever the order of keys.

    Args:
        kind: names the shape of the record.
        fields: None, bool, int of 64 bits, float, str, bytes, lists and tuples (which come back
            as lists) and str-keyed mappings of these.

    Raises:
        InvalidInputError: a value cannot be stored.
    """
    try:
        payload: bytes = msgpack.packb(
            {"fields": _canonical(fields), "kind": kind}, strict_types=True, use_bin_type=True
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidInputError(
            f"control record {kind!r} cannot be stored: {type(error).__name__}: {error}"
        ) from error
    if len(payload) > (most := MAX_CONTROL_BYTES - CONTROL_HEADER_BYTES):
        raise InvalidInputError(
            f"control record {kind!r}: {len(payload)} bytes are over the limit of {most}"
        )
    if states_too_many_values(payload):
        raise InvalidInputError(f"control record {kind!r}: more values than readers accept")
    checked = _CHECKED.pack(CONTROL_MAGIC, CONTROL_VERSION, 0, len(payload))
    return checked + _CRC.pack(crc32(payload, crc32(checked))) + payload


def bound(record: bytes, place: str) -> bytes:
    """Return the bytes to store under `place` for a record; given these bytes, return the record.

    The record's CRC is combined with the CRC of `place` by exclusive or. Under any other key the
    CRC is wrong, except with probability 2**-32. Bytes that cannot be a bound record are returned
    unchanged; `decode_control` then refuses them with a message.

    Args:
        record: an encoded control record, or what was stored under `place`.
        place: the object's key, relative to the root of its storage.
    """
    if len(record) < CONTROL_HEADER_BYTES:
        return record
    magic, version, _, _ = _CHECKED.unpack_from(record)
    if magic != CONTROL_MAGIC or version < _FIRST_BOUND:
        return record
    (crc,) = _CRC.unpack_from(record, _CHECKED.size)
    mixed = _CRC.pack(crc ^ crc32(place.encode()))
    return b"".join((record[: _CHECKED.size], mixed, record[CONTROL_HEADER_BYTES:]))


def decode_control(data: Bytes, *, name: str) -> ControlRecord:
    """Return the record in `data`, which it must fill exactly.

    Args:
        data: the whole object.
        name: of the object, for messages.

    Raises:
        CorruptDataError: too short, bad magic, bad CRC, trailing bytes, or an invalid payload.
        IncompatibleError: intact, but of another version.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < CONTROL_HEADER_BYTES:
        raise CorruptDataError(
            f"{name}: expected a control record of at least {CONTROL_HEADER_BYTES} bytes, "
            f"found {view.nbytes}"
        )
    magic, version, reserved, length = _CHECKED.unpack_from(view)
    (expected,) = _CRC.unpack_from(view, _CHECKED.size)
    payload = view[CONTROL_HEADER_BYTES:]
    actual = crc32(payload, crc32(view[: _CHECKED.size]))
    if magic != CONTROL_MAGIC:
        raise CorruptDataError(
            f"{name}: magic: expected {CONTROL_MAGIC.hex()}, found {magic.hex()}"
        )
    if actual != expected:
        raise CorruptDataError(
            f"{name}: CRC: expected {expected:#010x}, found {actual:#010x}: damaged, or the record "
            f"of another place"
        )
    if version < CONTROL_VERSION and not reserved:
        raise IncompatibleError(
            f"{name}: control record of version {version}, written by an earlier version of "
            f"durable-shuffle; this one reads version {CONTROL_VERSION}: use another folder, or "
            f"delete this job's and run the job again"
        )
    if version != CONTROL_VERSION or reserved:
        raise IncompatibleError(
            f"{name}: control record version: expected {CONTROL_VERSION} with reserved 0, "
            f"found {version} with reserved {reserved}"
        )
    if length != payload.nbytes:
        raise CorruptDataError(
            f"{name}: payload length: expected {length} bytes, found {payload.nbytes}"
        )
    return _decode_payload(payload, name)


class RecordCodec(Generic[R]):
    """Encodes and decodes a closed set of record classes.

    Each class is a frozen dataclass with `KIND: ClassVar[str]`. `field_types` lists the types that
    fields may have. All fields are stored, and decoding requires all: defaults do not replace
    missing fields.

    Args:
        classes: the record classes, with different kinds.

    Raises:
        InvalidInputError: a class or one of its fields cannot be stored, or two share a kind.
    """

    def __init__(self, classes: tuple[type[R], ...]) -> None:
        self._by_class: dict[type[R], tuple[str, RecordType]] = {}
        self._by_kind: dict[str, RecordType] = {}
        for cls in classes:
            kind = getattr(cls, "KIND", None)
            if not isinstance(kind, str):
                raise InvalidInputError(
                    f"record class {cls.__qualname__}: expected a str KIND, found {kind!r}"
                )
            if kind in self._by_kind:
                raise InvalidInputError(
                    f"record class {cls.__qualname__}: kind {kind!r} is already taken"
                )
            try:
                shape = RecordType(cls)
            except FieldError as error:
                raise InvalidInputError(str(error)) from error
            self._by_class[cls] = kind, shape
            self._by_kind[kind] = shape

    def encode(self, record: R) -> bytes:
        """Return the record as bytes; equal records are equal bytes.

        Raises:
            InvalidInputError: not one of the classes, or a field holds a value of another type.
        """
        entry = self._by_class.get(type(record))
        if entry is None:
            raise InvalidInputError(
                f"record class {type(record).__qualname__} is not one of this codec's"
            )
        kind, shape = entry
        try:
            fields = shape.encode(record, kind)
        except FieldError as error:
            raise InvalidInputError(str(error)) from error
        return encode_control(kind, fields)

    def decode(self, data: Bytes, name: str) -> R:
        """Return the record in `data`, which it must fill exactly.

        Args:
            data: the whole object.
            name: of the object, for messages.

        Raises:
            CorruptDataError: the bytes are not an intact control record, or the record class
                refuses a value, such as an invalid id.
            IncompatibleError: intact, but its version, kind or fields are not known here.
        """
        record = decode_control(data, name=name)
        shape = self._by_kind.get(record.kind)
        if shape is None:
            known = ", ".join(sorted(self._by_kind))
            raise IncompatibleError(
                f"{name}: record kind {record.kind!r} is unknown, expected one of {known}"
            )
        try:
            decoded: R = shape.decode(record.fields, record.kind)
        except RefusedValue as error:
            raise CorruptDataError(f"{name}: {error}") from error
        except FieldError as error:
            raise IncompatibleError(f"{name}: {error}") from error
        return decoded


def _canonical(value: object) -> object:
    kind = type(value)
    if kind in _SCALARS:  # nearly all values; large snapshots have 100,000
        return value
    if kind is dict or isinstance(value, Mapping):
        fields: Mapping[Any, object] = value  # type: ignore[assignment]
        for key in fields:
            if type(key) is not str:
                raise TypeError(f"map key {key!r} of type {type(key).__qualname__}, expected str")
        return {key: _canonical(fields[key]) for key in sorted(fields)}
    if isinstance(value, list | tuple):
        return [_canonical(element) for element in value]
    raise TypeError(f"value of type {kind.__module__}.{kind.__qualname__}")


def _refuse_extension(code: int, _: bytes) -> object:
    raise ValueError(f"extension type {code} has no place in a control record")


def _decode_payload(payload: memoryview, name: str) -> ControlRecord:
    if states_too_many_values(payload):
        raise CorruptDataError(f"{name}: a control record of more values than its bytes justify")
    try:
        value = msgpack.unpackb(payload, ext_hook=_refuse_extension, raw=False)
    except (ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise CorruptDataError(f"{name}: payload: {type(error).__name__}: {error}") from error
    match value:
        case {"fields": dict() as fields, "kind": str() as kind} if len(value) == 2:
            return ControlRecord(kind, fields)
    raise CorruptDataError(
        f"{name}: payload: expected a map of kind and fields, found {type(value).__name__}"
    )
