"""A stream reader's offset in a stage, and the next offset it goes to. Pure.

A stage is read as lanes, one per log producer. A lane is a sequence of records that only grows. For
each lane the offset holds the ordinal of the next row per subpartition, and the first log slot that
still holds unread rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError

OFFSET_VERSION = 1
Counts = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class LaneOffset:
    """A reader's offset in one lane."""

    slot: int
    """All rows in lower slots of the lane's log lie before this offset."""
    next: tuple[int, ...]
    """Ordinal of the next row, from 0, for each subpartition of the lane, ascending."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A reader's offset in a stage."""

    stage: str
    """The stage's folder below the job: name, fingerprint, incarnation."""
    lanes: tuple[LaneOffset, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark stores it in a checkpoint."""
        lanes = [{"slot": lane.slot, "next": list(lane.next)} for lane in self.lanes]
        return {"version": OFFSET_VERSION, "stage": self.stage, "producers": lanes}

    @property
    def rows(self) -> int:
        """Number of rows before this offset."""
        return sum(sum(lane.next) for lane in self.lanes)


def offset_from_json(found: object, *, stage: str, widths: tuple[int, ...]) -> StreamOffset:
    """Return the offset in `found`, a parsed JSON value from a checkpoint or a user.

    A user may leave out "stage" and "slot".

    Args:
        stage: folder of the stage that is read.
        widths: the number of subpartitions of each of its lanes.

    Raises:
        InvalidInputError: the value is no offset, or its lanes do not fit the stage.
        IncompatibleError: the offset belongs to another stage or has another version; the message
            names both.
    """
    if not isinstance(found, Mapping) or not isinstance(found.get("producers"), list):
        raise InvalidInputError(
            'an offset is {"producers": [{"next": [one number per subpartition]}, …]}, '
            f"found={found!r:.200}"
        )
    version = found.get("version", OFFSET_VERSION)
    if version != OFFSET_VERSION:
        raise IncompatibleError(f"offset of version {version}, this library reads {OFFSET_VERSION}")
    theirs = found.get("stage", stage)
    if theirs != stage:
        raise IncompatibleError(
            f"the offset is of another stage: the checkpoint reads {theirs!r}, the options name "
            f"{stage!r}; give the stage that it read, or a new checkpoint"
        )
    lanes = tuple(_lane(lane, found) for lane in found["producers"])
    if tuple(len(lane.next) for lane in lanes) != widths:
        raise InvalidInputError(
            f"the offset names {[len(lane.next) for lane in lanes]} subpartitions per producer, "
            f"stage {stage!r} has {list(widths)}"
        )
    return StreamOffset(stage, lanes)


def _lane(found: object, whole: object) -> LaneOffset:
    if isinstance(found, Mapping):
        slot, ordinals = found.get("slot", 0), found.get("next")
        if isinstance(ordinals, list) and all(map(_is_count, [slot, *ordinals])):
            return LaneOffset(slot, tuple(ordinals))
    raise InvalidInputError(f"an offset holds numbers from 0 on, found={whole!r:.200}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one step of a reader takes; None is unlimited. A step takes at least one row if
    there is one."""

    rows: int | None = None
    data_bytes: int | None = None
    """Stored bytes. A part of an extent counts by its share of the rows."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """The rows that one record of a lane's log added."""

    lane: int
    slot: int
    ends: Counts
    """Per subpartition of the lane: the ordinal after the last row."""
    rows: Counts
    """Per subpartition: the number of rows that the record added."""
    data_bytes: Counts
    """Per subpartition: the number of stored bytes that the record added."""


def advance(start: StreamOffset, arrivals: Iterable[Arrival], limits: Limits) -> StreamOffset:
    """Return the end offset of a step that begins at `start`.

    The step takes whole records while they fit into the limits. It takes the same share of every
    subpartition from the first record that does not fit, so that no partition starves and the work
    stays evenly spread.

    Args:
        arrivals: records from `start` on, those of each lane in log order. Rows before `start` are
            skipped.
    """
    lanes = list(start.lanes)
    left_rows, left_bytes, taken = limits.rows, limits.data_bytes, 0
    for found in arrivals:
        lane = lanes[found.lane]
        at = np.array(lane.next, dtype=np.uint64)
        first = found.ends - found.rows
        ahead = (found.ends - np.clip(at, first, found.ends)).astype(np.int64)
        rows = int(ahead.sum())
        share = ahead / np.maximum(found.rows.astype(np.int64), 1)
        size = float((share * found.data_bytes.astype(np.float64)).sum())
        part = 1.0
        if left_rows is not None and rows > left_rows:
            part = min(part, left_rows / rows)
        if left_bytes is not None and size > left_bytes:
            part = min(part, left_bytes / size)
        if part < 1.0:
            step = np.floor(ahead * part).astype(np.int64)
            if not step.sum() and not taken:
                step[int(np.flatnonzero(ahead)[0])] = 1
            reached = (np.maximum(at, first) + step.astype(np.uint64)).tolist()
            if step.sum():
                ends = np.where(ahead > 0, reached, at).tolist()
                lanes[found.lane] = LaneOffset(found.slot, tuple(map(int, ends)))
            break
        taken += rows
        left_rows = None if left_rows is None else left_rows - rows
        left_bytes = None if left_bytes is None else max(0, left_bytes - int(size))
        ends = np.maximum(at, found.ends).tolist()
        lanes[found.lane] = LaneOffset(found.slot + 1, tuple(map(int, ends)))
    return replace(start, lanes=tuple(lanes))


def capped(offset: StreamOffset, target: StreamOffset) -> StreamOffset:
    """Return the smaller of two offsets, for each lane and subpartition."""
    lanes = [
        LaneOffset(
            min(mine.slot, most.slot), tuple(map(min, zip(mine.next, most.next, strict=True)))
        )
        for mine, most in zip(offset.lanes, target.lanes, strict=True)
    ]
    return replace(offset, lanes=tuple(lanes))
