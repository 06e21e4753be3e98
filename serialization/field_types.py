"""Encodes the fields of record classes for control records; prepared once per class.

Strategy: each type becomes a small object that encodes a value to what msgpack holds and checks
it on the way back. Types: str, int, bool, bytes, float, None, StrEnum, `Literal` of strings,
`NewType` of these, tuples (`tuple[X, ...]` or of fixed length), frozen dataclasses, `dict` and
`Mapping` from str, and unions whose members look different in storage, such as `X | None`.

Nothing is converted: a value of another type is an error, in both directions.
"""

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from durable_shuffle.serialization.errors import InvalidInputError


class FieldError(Exception):
    """A class cannot be a record, or a value does not fit; callers turn it into a public error."""


class RefusedValue(FieldError):
    """The fields have the right types, but a value that this version never writes."""


class FieldType(Protocol):
    """One type of field."""

    @property
    def stored(self) -> type:
        """The type of its values in a decoded record."""

    @property
    def host(self) -> type:
        """The type of its values in Python."""

    def encode(self, value: Any, where: str) -> Any:
        """Return what is stored; raises FieldError naming `where`."""

    def decode(self, value: Any, where: str) -> Any:
        """Return the value of what was stored; raises FieldError naming `where`."""


def _check(value: object, expected: type, where: str) -> None:
    if type(value) is not expected:
        raise FieldError(
            f"field {where}: expected {expected.__name__}, found {type(value).__name__}"
        )


class ScalarType:
    """str, int, bool, bytes, float or None, stored unchanged."""

    def __init__(self, kind: type) -> None:
        self.stored = self.host = kind

    def encode(self, value: Any, where: str) -> Any:
        _check(value, self.host, where)
        return value

    decode = encode


class ChoiceType:
    """A StrEnum, or a Literal of strings: stored as its text."""

    def __init__(self, host: type, choices: Mapping[str, str]) -> None:
        self.stored = str
        self.host = host
        self._choices = choices

    def encode(self, value: Any, where: str) -> Any:
        _check(value, self.host, where)
        self._choose(value, where)
        return str(value)

    def decode(self, value: Any, where: str) -> Any:
        _check(value, str, where)
        return self._choose(value, where)

    def _choose(self, value: str, where: str) -> str:
        if value not in self._choices:
            raise FieldError(
                f"field {where}: expected one of {', '.join(self._choices)}, found {value!r}"
            )
        return self._choices[value]


class TupleType:
    """A tuple, stored as an array: `tuple[X, Y]`, or, with `repeated`, `tuple[X, ...]`."""

    stored = list
    host = tuple

    def __init__(self, *elements: FieldType, repeated: bool = False) -> None:
        self._elements, self._repeated = elements, repeated

    def encode(self, value: Any, where: str) -> Any:
        _check(value, tuple, where)
        return [e.encode(v, f"{where}[{i}]") for i, (e, v) in self._pairs(value, where)]

    def decode(self, value: Any, where: str) -> Any:
        _check(value, list, where)
        return tuple(e.decode(v, f"{where}[{i}]") for i, (e, v) in self._pairs(value, where))

    def _pairs(self, value: Any, where: str) -> Iterator[tuple[int, tuple[FieldType, Any]]]:
        elements = self._elements * len(value) if self._repeated else self._elements
        if len(value) != len(elements):
            raise FieldError(
                f"field {where}: expected {len(elements)} elements, found {len(value)}"
            )
        return enumerate(zip(elements, value, strict=True))


class MapType:
    """`dict[str, X]` or `Mapping[str, X]`: stored as a map, comes back as a dict."""

    stored = dict
    host = Mapping

    def __init__(self, element: FieldType) -> None:
        self._element = element

    def encode(self, value: Any, where: str) -> Any:
        if not isinstance(value, Mapping):
            raise FieldError(f"field {where}: expected a mapping, found {type(value).__name__}")
        return self._each(self._element.encode, value, where)

    def decode(self, value: Any, where: str) -> Any:
        _check(value, dict, where)
        return self._each(self._element.decode, value, where)

    def _each(
        self, convert: Callable[[Any, str], Any], value: Mapping[Any, Any], where: str
    ) -> dict[str, Any]:
        for key in value:
            _check(key, str, f"{where} key {key!r}")
        return {key: convert(item, f"{where}[{key!r}]") for key, item in value.items()}


class UnionType:
    """A union; the stored type tells which member it is."""

    stored = host = object

    def __init__(self, members: tuple[FieldType, ...], where: str) -> None:
        self._members = members
        self._by_stored = {member.stored: member for member in members}
        if len(self._by_stored) != len(members):
            raise FieldError(f"field {where}: members of the union look alike in storage")
        self._names = " or ".join(member.host.__name__ for member in members)

    def encode(self, value: Any, where: str) -> Any:
        for member in self._members:
            if type(value) is member.host or (
                member.host is Mapping and isinstance(value, Mapping)
            ):
                return member.encode(value, where)
        raise self._mismatch(value, where)

    def decode(self, value: Any, where: str) -> Any:
        member = self._by_stored.get(type(value))
        if member is None:
            raise self._mismatch(value, where)
        return member.decode(value, where)

    def _mismatch(self, value: object, where: str) -> FieldError:
        return FieldError(f"field {where}: expected {self._names}, found {type(value).__name__}")


class RecordType:
    """A frozen dataclass: stored as a map of its fields.

    Raises:
        FieldError: the class is no frozen dataclass or has a field of an unsupported type.
    """

    stored = dict

    def __init__(self, host: type) -> None:
        if not (dataclasses.is_dataclass(host) and host.__dataclass_params__.frozen):  # type: ignore[attr-defined]
            raise FieldError(f"record class {host.__qualname__}: expected a frozen dataclass")
        self.host = host
        hints = typing.get_type_hints(host)
        self._fields: dict[str, FieldType] = {
            field.name: field_type(hints[field.name], f"{host.__qualname__}.{field.name}")
            for field in dataclasses.fields(host)
        }

    def encode(self, value: Any, where: str) -> dict[str, Any]:
        _check(value, self.host, where)
        return {
            name: kind.encode(getattr(value, name), f"{where}.{name}")
            for name, kind in self._fields.items()
        }

    def decode(self, value: Any, where: str) -> Any:
        _check(value, dict, where)
        if value.keys() != self._fields.keys():
            missing = sorted(self._fields.keys() - value.keys())
            extra = sorted(value.keys() - self._fields.keys(), key=repr)
            raise FieldError(f"record {where}: fields missing: {missing}, fields unknown: {extra}")
        decoded = {
            name: kind.decode(value[name], f"{where}.{name}") for name, kind in self._fields.items()
        }
        try:
            return self.host(**decoded)
        except (InvalidInputError, ValueError) as error:  # of the class's own __post_init__
            raise RefusedValue(f"record {where}: {error}") from error


def field_type(hint: Any, where: str) -> FieldType:
    """Return the field type for a resolved type hint; raises FieldError naming `where`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in (str, int, bool, bytes, float, types.NoneType):
        return ScalarType(hint)
    if isinstance(hint, typing.NewType):
        return field_type(hint.__supertype__, where)
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return ChoiceType(hint, {str(member): member for member in hint})
    if origin is typing.Literal and all(type(arg) is str for arg in args):
        return ChoiceType(str, {arg: arg for arg in args})
    if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
        return TupleType(field_type(args[0], where), repeated=True)
    if origin is tuple:
        return TupleType(*(field_type(arg, where) for arg in args))
    if origin in (dict, Mapping) and args[0] is str:
        return MapType(field_type(args[1], where))
    if origin in (types.UnionType, typing.Union):
        return UnionType(tuple(field_type(arg, where) for arg in args), where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return RecordType(hint)
    raise FieldError(f"field {where}: type {hint} cannot be stored")
