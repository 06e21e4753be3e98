"""Positions of a source, as the log of its producer holds them.

Most sources have one position, which rises. A source that collects, such as `FolderSource`, has as
its position everything that it gave, and each item adds a name to it. A record must not repeat all
names, and a successor must not read the whole log. So the records form nodes as in a binary
counter: a new node takes in the nodes before it that are as large as it is, and points to the slot
of the node before that. A name is written O(log `MOST_NAMES`) times, and a successor reads one slot
per `MOST_NAMES` names and a few more.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.user_code import user_code

Position: TypeAlias = int | str | bytes
MOST_NAMES = 4096
"""Nodes with more names are not taken into others, so records stay small."""


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """The position of a source that has one."""

    KIND: ClassVar[str] = "SOURCE_POSITION"
    value: int | str | bytes
    checkpoint: int
    """The last checkpoint marker that was sent; 0: none."""


@dataclass(frozen=True, slots=True)
class SourceNames:
    """The newest node of a source that collects."""

    KIND: ClassVar[str] = "SOURCE_NAMES"
    names: tuple[str, ...]
    size: int
    """How many records this node stands for."""
    slot: int
    """Of the first record that holds this node. Later ones repeat it until there is another."""
    before: int
    """Slot of the node before this one; -1: there is none."""
    checkpoint: int


_POSITIONS: RecordCodec[SourcePosition | SourceNames] = RecordCodec((SourcePosition, SourceNames))


class Positions(Protocol):
    """How far one attempt at a source task is."""

    checkpoint: int
    """The last checkpoint marker that was sent; 0: none."""

    @property
    def start(self) -> Position | Collection[str] | None:
        """What the source is asked to go on from; None at the very start."""

    @property
    def begun(self) -> bool:
        """Whether there is anything to encode."""

    def take(self, position: object) -> None:
        """Move on to the position of an item.

        Raises:
            InvalidInputError: it is no position, or it goes back.
        """

    def encode(self, slot: int) -> bytes:
        """Return what the record of this slot holds, which is the next one; once it has begun."""


def rises(before: Position, after: Position) -> bool:
    """Return whether a position is greater than one of its own type."""
    same = any(isinstance(before, kind) and isinstance(after, kind) for kind in (int, str, bytes))
    return same and after > before  # type: ignore[operator]


def positions_of(
    source: object,
    stored: bytes,
    *,
    name: str,
    producer: int,
    stored_in: Callable[[int], bytes],
) -> Positions:
    """Return the position of a source after what its log holds.

    Args:
        stored: in the last record; b"" at the very start.
        name: of the source, for messages.
        stored_in: returns what the record in a slot holds.

    Raises:
        IncompatibleError: a source of the other kind wrote the log.
        CorruptDataError: a record is damaged.
    """
    found = _POSITIONS.decode(stored, name=f"source {name!r}") if stored else None
    collects = bool(getattr(source, "collects", False))
    if found is not None and collects is not isinstance(found, SourceNames):
        raise IncompatibleError(
            f"source {name!r} was of another kind when it was run before, and its position does "
            "not fit: put it back, or give the source another name"
        )
    if collects:
        return CollectedNames(name, _nodes(found, stored_in, name))
    advances = getattr(source, "advances", rises)
    return OnePosition(name, producer, advances, found)


class OnePosition:
    """Implements `Positions` for a source with one position that rises."""

    def __init__(
        self,
        name: str,
        producer: int,
        advances: Callable[[Position, Position], bool],
        stored: object,
    ) -> None:
        self._name, self._producer, self._advances = name, producer, advances
        self.start: Position | None = None
        self.checkpoint = 0
        if isinstance(stored, SourcePosition):
            self.start, self.checkpoint = stored.value, stored.checkpoint
        self._value = self.start

    def take(self, position: object) -> None:
        if not isinstance(position, int | str | bytes) or isinstance(position, bool):
            raise InvalidInputError(
                f"a position of source {self._name!r} is a number, text or bytes, found "
                f"{type(position).__name__}"
            )
        if self._value is not None and not self._rises_to(position):
            raise InvalidInputError(
                f"the position of source {self._name!r} goes forward only: "
                f"producer={self._producer} from {self._value!r:.80} to {position!r:.80}"
            )
        self._value = position

    def _rises_to(self, position: Position) -> bool:
        assert self._value is not None
        with user_code():
            return self._advances(self._value, position)

    @property
    def begun(self) -> bool:
        return self._value is not None

    def encode(self, slot: int) -> bytes:
        assert self._value is not None
        return _POSITIONS.encode(SourcePosition(self._value, self.checkpoint))


class CollectedNames:
    """Implements `Positions` for a source that collects names.

    Args:
        nodes: what the log holds, oldest first.
    """

    def __init__(self, name: str, nodes: list[SourceNames]) -> None:
        self._name, self._nodes = name, nodes
        self._seen = {one for node in nodes for one in node.names}
        self._new: list[str] = []
        self.checkpoint = nodes[-1].checkpoint if nodes else 0

    @property
    def start(self) -> Collection[str] | None:
        return frozenset(self._seen)

    def take(self, position: object) -> None:
        if not isinstance(position, str) or position in self._seen:
            raise InvalidInputError(
                f"source {self._name!r} collects texts, each once, found {position!r:.80}"
            )
        self._seen.add(position)
        self._new.append(position)

    @property
    def begun(self) -> bool:
        return bool(self._seen)

    def encode(self, slot: int) -> bytes:
        if self._new:
            self._add(slot)
        last = self._nodes[-1]
        node = SourceNames(last.names, last.size, last.slot, last.before, self.checkpoint)
        return _POSITIONS.encode(node)

    def _add(self, slot: int) -> None:
        names, size = tuple(self._new), 1
        self._new = []
        while self._nodes and self._nodes[-1].size <= size:
            if len(names) + len(self._nodes[-1].names) > MOST_NAMES:
                break
            last = self._nodes.pop()
            names, size = (*last.names, *names), last.size + size
        before = self._nodes[-1].slot if self._nodes else -1
        self._nodes.append(SourceNames(names, size, slot, before, self.checkpoint))


def slots_needed(stored: bytes, stored_in: Callable[[int], bytes], *, name: str) -> set[int]:
    """Return the earlier slots that a successor reads which goes on from a position.

    Args:
        stored: the newest position; b"" at the very start.
        stored_in: returns what the record in a slot holds.
        name: of the log, for messages.
    """
    found = _POSITIONS.decode(stored, name=name) if stored else None
    return {node.before for node in _nodes(found, stored_in, name) if node.before >= 0}


def _nodes(newest: object, stored_in: Callable[[int], bytes], name: str) -> list[SourceNames]:
    nodes: list[SourceNames] = []
    while isinstance(newest, SourceNames):
        nodes.append(newest)
        if newest.before < 0:
            break
        if newest.before >= newest.slot:
            raise CorruptDataError(
                f"source {name!r}: the node of slot {newest.slot} follows that of slot "
                f"{newest.before}"
            )
        where = f"source {name!r}, slot {newest.before}"
        node = _POSITIONS.decode(stored_in(newest.before), name=where)
        if not isinstance(node, SourceNames) or node.slot != newest.before:
            raise CorruptDataError(f"{where}: expected the names of a source, found {node!r:.80}")
        newest = node
    return nodes[::-1]
