"""Which partitions are so large that several tasks should read each of them. Pure.

A partition is skewed if it is larger than a number of bytes and than a multiple of the median. Its
extents are divided into slices of about equal size, one per task. In a join the task also reads the
same partition of the other side, whole or a slice of it: then there is one task per pair of slices.

Source: `OptimizeSkewedJoin` and `OptimizeSkewInRebalancePartitions` of Apache Spark, which divide
by map tasks instead of extents.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from durable_shuffle.recovery.grouping import Group

Slice = tuple[int, int, int, int]
"""First partition, end (exclusive), and a run of the partition's extents: first and end."""
Read = Group | Slice
"""What one task reads: whole partitions, or a part of one."""
ExtentBytes = Callable[[int], Sequence[int]]
"""Partition -> the bytes of its extents, in the order in which they are read."""


@dataclass(frozen=True, slots=True)
class SkewRule:
    """When a partition is divided, as Spark's settings say."""

    least_bytes: int
    """Smaller partitions are never divided; 0 divides none."""
    factor: float
    """Nor are those that are at most so many times as large as the median."""
    slice_bytes: int
    """What a slice aims at; the mean of the partitions that are not skewed, if that is more."""


@dataclass(frozen=True, slots=True)
class Side:
    """One input of a join, or the only input of what reads it."""

    sizes: Sequence[int]
    """Bytes of each partition."""
    may_split: bool
    """Whether its rows may be spread over tasks that read the same rows of the other side."""
    extents: ExtentBytes


def split_skewed(
    sides: Sequence[Side], groups: Sequence[Group], rule: SkewRule
) -> list[tuple[Read, ...]]:
    """Return what each task reads, for each side; `groups` if nothing is skewed.

    Args:
        sides: one, or the two of a join.
        groups: the same for all sides.
    """
    limits = [_limit(side, rule) for side in sides]
    tasks: list[tuple[Read, ...]] = []
    for group in _apart(groups, sides, limits):
        slices = [
            _slices(group, side, limit, rule) for side, limit in zip(sides, limits, strict=True)
        ]
        tasks += itertools.product(*slices)
    return list(zip(*tasks, strict=True))


def _apart(
    groups: Sequence[Group], sides: Sequence[Side], limits: Sequence[float]
) -> Iterator[Group]:
    """Yield the groups, with skewed partitions in groups of their own."""
    for first, end in groups:
        begin = first
        for k in range(first, end):
            if any(side.sizes[k] > limit for side, limit in zip(sides, limits, strict=True)):
                yield from [(begin, k)] * (begin < k)
                yield k, k + 1
                begin = k + 1
        yield from [(begin, end)] * (begin < end)


def _limit(side: Side, rule: SkewRule) -> float:
    """Return the size up to which partitions of a side are not divided."""
    if not side.may_split or not rule.least_bytes:
        return math.inf
    middle = sorted(side.sizes)[len(side.sizes) // 2]
    return max(float(rule.least_bytes), middle * rule.factor)


def _slices(group: Group, side: Side, limit: float, rule: SkewRule) -> Sequence[Read]:
    first, end = group
    if end - first > 1 or side.sizes[first] <= limit:
        return [group]
    others = [size for size in side.sizes if size <= limit]
    aim = max(rule.slice_bytes, sum(others) // max(1, len(others)))
    cuts, held = [0], 0
    extents = side.extents(first)
    for position, size in enumerate(extents):
        if held and held + size > aim:
            cuts.append(position)
            held = 0
        held += size
    if len(cuts) == 1:
        return [group]
    ends = [*cuts[1:], len(extents)]
    return [(first, end, a, b) for a, b in zip(cuts, ends, strict=True)]
