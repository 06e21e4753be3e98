"""Which neighbouring small partitions one task reads together. Pure.

Given true sizes, so the answer is the same in every run over the same stored stages. The idea is
that of Spark's adaptive coalescing: contiguous runs of partitions, alike on all sides of a join.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from durable_shuffle.serialization.errors import InvalidInputError

_MANY = 8
"""With so many partitions per task, the size of one does not count."""

Group = tuple[int, int]
"""First partition and end (exclusive) of a run that one task reads."""


@dataclass(frozen=True, slots=True)
class GroupingRule:
    """When partitions are small enough to be read together."""

    target_bytes: int
    """A group is closed before it would hold more than this, unless one partition alone does."""
    tasks: int
    """With less data than so many tasks times target, groups are smaller: no core idles, and what
    a crash takes along is a small part."""
    least_bytes: int
    """But no group aims at less than this: a task costs more than reading so little."""

    def __post_init__(self) -> None:
        if min(self.target_bytes, self.tasks, self.least_bytes) < 1:
            raise InvalidInputError(f"a grouping rule needs numbers from 1 on, found={self}")


def group_alike(sides: Sequence[Sequence[int]], rule: GroupingRule) -> tuple[Group, ...]:
    """Return groups that cover all partitions once, in order; the same for every side.

    Args:
        sides: bytes of each partition, one sequence per side; all of the same length, from 1.
    """
    if not sides or not sides[0] or any(len(side) != len(sides[0]) for side in sides):
        raise InvalidInputError(
            f"sides to be grouped alike must have one number of partitions from 1 on, found="
            f"{[len(side) for side in sides]}"
        )
    sizes = [sum(of_one) for of_one in zip(*sides, strict=True)]
    fair = -(-sum(sizes) // rule.tasks)
    if len(sizes) >= _MANY * rule.tasks:  # else what does not fit would make one more task
        fair += -(-sum(sizes) // len(sizes))
    target = min(rule.target_bytes, max(fair, rule.least_bytes))
    groups: list[Group] = []
    first, held = 0, 0
    for k, size in enumerate(sizes):
        if k > first and held + size > target:
            groups.append((first, k))
            first, held = k, 0
        held += size
    groups.append((first, len(sizes)))
    return tuple(groups)


def even_groups(partitions: int, groups: int) -> tuple[Group, ...]:
    """Return about equally long runs that cover all partitions once, in order.

    Args:
        partitions: from 1.
        groups: how many are wanted; at least one and at most `partitions` are returned.
    """
    count = min(partitions, max(1, groups))
    ends = [partitions * number // count for number in range(count + 1)]
    return tuple(pairwise(ends))
