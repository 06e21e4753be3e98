"""Record classes as control records."""

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal, NewType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from durable_shuffle.serialization.control import RecordCodec, decode_control, encode_control
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)

Epoch = NewType("Epoch", int)


class Mode(StrEnum):
    FINITE = "finite"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True)
class Extent:
    start: int
    key: str


@dataclass(frozen=True, slots=True)
class Commit:
    KIND: ClassVar[str] = "commit"

    attempt: str
    rows: int
    done: bool
    packed: bytes
    ratio: float
    nothing: None
    epoch: Epoch
    mode: Mode
    plane: Literal["external", "internal"]
    sizes: tuple[int, ...]
    pair: tuple[int, str]
    extent: Extent
    extents: tuple[Extent, ...]
    labels: Mapping[str, str | int]
    nested: dict[str, tuple[Extent, ...]]
    note: str | None
    parent: Extent | None


@dataclass(frozen=True, slots=True)
class Abort:
    KIND: ClassVar[str] = "abort"

    attempt: str
    retries: int = 3

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise InvalidInputError("retries: expected at least 0")


CODEC = RecordCodec[Commit | Abort]((Commit, Abort))
COMMIT = Commit(
    attempt="a1",
    rows=5,
    done=True,
    packed=b"\0\1",
    ratio=0.5,
    nothing=None,
    epoch=Epoch(7),
    mode=Mode.DRAIN,
    plane="internal",
    sizes=(1, 2),
    pair=(3, "x"),
    extent=Extent(0, "k"),
    extents=(Extent(1, "l"), Extent(2, "m")),
    labels={"z": 1, "a": "b"},
    nested={"p": (Extent(3, "n"),)},
    note=None,
    parent=Extent(4, "o"),
)


def with_fields(**changes: object) -> bytes:
    """A stored COMMIT with some fields changed; Ellipsis takes one out."""
    fields = decode_control(CODEC.encode(COMMIT), name="x").fields | changes
    return encode_control("commit", {k: v for k, v in fields.items() if v is not ...})


def test_record_comes_back() -> None:
    """Equal, and with tuples, enums and nested records as they were."""
    found = CODEC.decode(CODEC.encode(COMMIT), "slot 3")
    assert found == COMMIT
    assert isinstance(found, Commit)
    assert type(found.mode) is Mode
    assert type(found.extents) is tuple
    assert CODEC.decode(CODEC.encode(Abort("a2")), "slot 4") == Abort("a2", 3)


def test_stored_fields_are_plain() -> None:
    """Kind and field names as in the class, values as msgpack has them."""
    record = decode_control(CODEC.encode(COMMIT), name="x")
    assert record.kind == "commit"
    assert record.fields["extents"] == [{"start": 1, "key": "l"}, {"start": 2, "key": "m"}]
    assert record.fields["mode"] == "drain"
    assert record.fields["parent"] == {"start": 4, "key": "o"}
    assert record.fields.keys() == {f.name for f in dataclasses.fields(Commit)}


@settings(deadline=None)
@given(
    st.builds(
        Commit,
        nothing=st.none(),
        rows=st.integers(-(2**63), 2**64 - 1),
        epoch=st.integers(0, 2**64 - 1).map(Epoch),
        ratio=st.floats(allow_nan=False),
        sizes=st.lists(st.integers(0, 2**32)).map(tuple),
        pair=st.tuples(st.integers(0, 9), st.text()),
        labels=st.dictionaries(st.text(), st.text() | st.integers(0, 9)),
        extent=st.builds(Extent, start=st.integers(0, 9)),
        extents=st.lists(st.builds(Extent, start=st.integers(0, 9)), max_size=3).map(tuple),
        nested=st.just({}),
        parent=st.none() | st.builds(Extent, start=st.integers(0, 9)),
    )
)
def test_any_record_comes_back(record: Commit) -> None:
    """For values of every supported type."""
    assert CODEC.decode(CODEC.encode(record), "x") == record


def test_unknown_kind_is_incompatible() -> None:
    """It is named, and so are the known ones and the object."""
    with pytest.raises(
        IncompatibleError,
        match="slot 3: record kind 'compact' is unknown, expected one of abort, commit",
    ):
        CODEC.decode(encode_control("compact", {}), "slot 3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ...}, r"commit: fields missing: \['rows'\]"),
        ({"extra": 1}, r"fields unknown: \['extra'\]"),
        ({"rows": "5"}, "commit.rows: expected int, found str"),
        ({"rows": True}, "commit.rows: expected int, found bool"),
        ({"done": 1}, "commit.done: expected bool, found int"),
        ({"ratio": 1}, "commit.ratio: expected float, found int"),
        ({"packed": "x"}, "commit.packed: expected bytes, found str"),
        ({"nothing": 0}, "commit.nothing: expected NoneType, found int"),
        ({"mode": "later"}, "commit.mode: expected one of finite, drain, found 'later'"),
        ({"plane": "third"}, "commit.plane: expected one of external, internal"),
        ({"sizes": [1, None]}, r"commit.sizes\[1\]: expected int, found NoneType"),
        ({"sizes": {}}, "commit.sizes: expected list, found dict"),
        ({"pair": [1]}, "commit.pair: expected 2 elements, found 1"),
        ({"extent": {"start": 1}}, r"commit.extent: fields missing: \['key'\]"),
        ({"extents": [{"start": 1, "key": 2}]}, r"commit.extents\[0\].key: expected str"),
        ({"labels": {"a": b"x"}}, "commit.labels.'a'.: expected str or int, found bytes"),
        ({"parent": "x"}, "commit.parent: expected Extent or NoneType, found str"),
    ],
)
def test_fields_of_another_shape_are_incompatible(changes: dict[str, Any], message: str) -> None:
    """An intact record of a version with other fields: the field and the object are named."""
    with pytest.raises(IncompatibleError, match=f"slot 3: .*{message}"):
        CODEC.decode(with_fields(**changes), "slot 3")


def test_default_does_not_stand_in_for_a_missing_field() -> None:
    """Whoever wrote it did not know the field."""
    with pytest.raises(IncompatibleError, match=r"fields missing: \['retries'\]"):
        CODEC.decode(encode_control("abort", {"attempt": "a"}), "slot 3")


def test_value_that_the_class_refuses_is_corruption() -> None:
    """The class's own check speaks about a call; nobody stores such a record."""
    with pytest.raises(CorruptDataError, match="slot 3: record abort: retries"):
        CODEC.decode(encode_control("abort", {"attempt": "a", "retries": -1}), "slot 3")


def test_damaged_record_is_corruption() -> None:
    """The envelope's errors pass through."""
    with pytest.raises(CorruptDataError, match="slot 3"):
        CODEC.decode(CODEC.encode(COMMIT)[:-1], "slot 3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": "5"}, "commit.rows: expected int, found str"),
        ({"rows": True}, "commit.rows: expected int, found bool"),
        ({"sizes": [1]}, "commit.sizes: expected tuple, found list"),
        ({"mode": "drain"}, "commit.mode: expected Mode, found str"),
        ({"labels": {1: "x"}}, "commit.labels key 1: expected str"),
        ({"parent": 5}, "commit.parent: expected Extent or NoneType, found int"),
        ({"rows": 2**64}, "OverflowError"),
    ],
)
def test_record_with_values_of_other_types_is_refused(
    changes: dict[str, Any], message: str
) -> None:
    """At the writer, so that no reader has to meet it."""
    with pytest.raises(InvalidInputError, match=message):
        CODEC.encode(dataclasses.replace(COMMIT, **changes))


@dataclass(frozen=True)
class NoKind:
    x: int


@dataclass
class Thawed:
    KIND: ClassVar[str] = "thawed"
    x: int


@dataclass(frozen=True)
class Lists:
    KIND: ClassVar[str] = "lists"
    x: list[int]


@dataclass(frozen=True)
class Alike:
    KIND: ClassVar[str] = "alike"
    x: Extent | dict[str, int]


@dataclass(frozen=True)
class IntKeys:
    KIND: ClassVar[str] = "int_keys"
    x: dict[int, int]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ((NoKind,), "NoKind: expected a str KIND"),
        ((Thawed,), "Thawed: expected a frozen dataclass"),
        ((Lists,), "Lists.x: type .*list.* cannot be stored"),
        ((Alike,), "Alike.x: members of the union look alike"),
        ((IntKeys,), "IntKeys.x: type .*dict.* cannot be stored"),
        ((Abort, Abort), "kind 'abort' is already taken"),
    ],
)
def test_classes_that_cannot_be_records_are_refused(
    classes: tuple[type, ...], message: str
) -> None:
    """When the codec is made, not when the first record comes."""
    with pytest.raises(InvalidInputError, match=message):
        RecordCodec[Any](classes)


def test_record_of_another_class_is_refused() -> None:
    """Also a subclass or a class that only looks the same."""
    with pytest.raises(InvalidInputError, match="Extent is not one of this codec's"):
        CODEC.encode(Extent(1, "x"))  # type: ignore[arg-type]


def test_large_packed_fields_cost_next_to_nothing() -> None:
    """A hundred thousand integers travel as bytes: 200 round trips of 800 kB in seconds."""
    record = dataclasses.replace(COMMIT, packed=bytes(800_000))
    started = time.process_time()
    for _ in range(200):
        assert CODEC.decode(CODEC.encode(record), "x") == record
    assert time.process_time() - started < 5
