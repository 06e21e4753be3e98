"""Large partitions are read by several tasks."""

import itertools
import random

import pytest

from durable_shuffle.recovery.grouping import GroupingRule, group_alike
from durable_shuffle.recovery.skew import Read, Side, SkewRule, split_skewed

RULE = SkewRule(least_bytes=100, factor=3.0, slice_bytes=40)


def side(extents: list[list[int]], *, may_split: bool = True) -> Side:
    return Side([sum(of_one) for of_one in extents], may_split, extents.__getitem__)


def pairs(reads: tuple[Read, ...], extents: list[list[int]]) -> list[set[tuple[int, int]]]:
    """Return the (partition, extent) that each task reads."""
    found = []
    for first, end, *part in reads:
        whole = {(k, i) for k in range(first, end) for i in range(len(extents[k]))}
        found.append({(k, i) for k, i in whole if not part or part[0] <= i < part[1]})
    return found


def test_a_large_partition_is_divided() -> None:
    left = [[10], [30, 30, 30, 30, 30], [10]]
    right = [[5], [6], [7]]
    groups = [(0, 1), (1, 2), (2, 3)]
    one, other = split_skewed((side(left), side(right)), groups, RULE)
    assert one == (
        (0, 1),
        (1, 2, 0, 1),
        (1, 2, 1, 2),
        (1, 2, 2, 3),
        (1, 2, 3, 4),
        (1, 2, 4, 5),
        (2, 3),
    )
    assert other == ((0, 1), *[(1, 2)] * 5, (2, 3))


def test_an_input_alone_is_divided() -> None:
    """Also if all partitions are as large: the factor is Spark's for joins only."""
    extents = [[30, 30, 30], [10], [30, 30, 30]]
    rule = SkewRule(least_bytes=40, factor=0.0, slice_bytes=60)
    (reads,) = split_skewed([side(extents)], [(0, 2), (2, 3)], rule)
    assert reads == ((0, 1, 0, 2), (0, 1, 2, 3), (1, 2), (2, 3, 0, 2), (2, 3, 2, 3))


@pytest.mark.parametrize(
    "rule", [SkewRule(0, 3.0, 40), SkewRule(151, 3.0, 40), SkewRule(100, 16.0, 40)]
)
def test_others_are_not(rule: SkewRule) -> None:
    left = [[10], [30, 30, 30, 30, 30], [10]]
    groups = [(0, 1), (1, 2), (2, 3)]
    whole = tuple(groups)
    assert split_skewed((side(left), side([[1]] * 3)), groups, rule) == [whole, whole]


def test_a_side_that_must_stay_whole_stays_whole() -> None:
    left = [[10], [30, 30, 30, 30, 30], [10]]
    groups = [(0, 1), (1, 2), (2, 3)]
    one = side(left, may_split=False)
    assert split_skewed((one, one), groups, RULE) == [tuple(groups), tuple(groups)]


def test_one_extent_cannot_be_divided() -> None:
    left = [[10], [150], [10]]
    groups = [(0, 1), (1, 2), (2, 3)]
    assert split_skewed((side(left), side([[1]] * 3)), groups, RULE)[0] == tuple(groups)


def test_every_pair_of_rows_meets_once(seed: int) -> None:
    """Each extent of a partition meets each extent of it on the other side in exactly one task."""
    draw = random.Random(seed)
    for _ in range(200):
        count = draw.randint(1, 8)
        extents = [
            [[draw.randint(1, 60) for _ in range(draw.choice([0, 1, 3, 9]))] for _ in range(count)]
            for _ in range(2)
        ]
        sides = side(extents[0]), side(extents[1])
        groups = group_alike([s.sizes for s in sides], GroupingRule(50, 4, 10))
        left, right = split_skewed(sides, groups, RULE)
        met = [
            met
            for one, other in zip(pairs(left, extents[0]), pairs(right, extents[1]), strict=True)
            for met in itertools.product(one, other)
            if met[0][0] == met[1][0]
        ]
        wanted = [
            ((k, i), (k, j))
            for k in range(count)
            for i in range(len(extents[0][k]))
            for j in range(len(extents[1][k]))
        ]
        assert sorted(met) == sorted(wanted)
