"""Grouping of small partitions: every partition once, in order, alike on all sides."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.recovery.grouping import GroupingRule, even_groups, group_alike
from durable_shuffle.serialization.errors import InvalidInputError

SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=40)


@given(SIZES, st.integers(1, 2000), st.integers(1, 8), st.integers(1, 500))
def test_groups_cover_all_partitions_in_order(
    sizes: list[int], target: int, tasks: int, least: int
) -> None:
    """The groups are a partition of the numbers, and none could have been closed later."""
    groups = group_alike([sizes], GroupingRule(target, tasks, least))
    assert [k for first, end in groups for k in range(first, end)] == list(range(len(sizes)))
    for first, end in groups:
        assert end - first == 1 or sum(sizes[first:end]) <= target


def test_a_table_of_cases() -> None:
    """Sizes, rule, groups."""
    for sides, rule, expected in (
        ([[1, 1, 1, 1]], GroupingRule(100, 1, 1), ((0, 4),)),
        ([[1, 1, 1, 1]], GroupingRule(100, 2, 1), ((0, 2), (2, 4))),
        ([[1, 1, 1, 1]], GroupingRule(100, 2, 10), ((0, 4),)),
        ([[50, 60, 50]], GroupingRule(100, 1, 1), ((0, 1), (1, 2), (2, 3))),
        ([[900, 1, 1]], GroupingRule(100, 1, 1), ((0, 1), (1, 3))),
        ([[1, 99, 1], [0, 2, 0]], GroupingRule(100, 1, 1), ((0, 1), (1, 2), (2, 3))),
        ([[0, 0, 0]], GroupingRule(100, 4, 1), ((0, 3),)),
    ):
        assert group_alike(sides, rule) == expected


def test_bad_input_is_refused() -> None:
    """No sides, no partitions, sides of different length, numbers below 1."""
    rule = GroupingRule(1, 1, 1)
    for sides in ([], [[]], [[1, 2], [1]]):
        with pytest.raises(InvalidInputError):
            group_alike(sides, rule)
    with pytest.raises(InvalidInputError):
        GroupingRule(0, 1, 1)


@pytest.mark.parametrize(("partitions", "groups"), [(1, 0), (4, 1), (4, 9), (7, 3), (200, 20)])
def test_even_groups_cover_all_partitions_in_order(partitions: int, groups: int) -> None:
    """No run is empty, and lengths differ by at most one."""
    made = even_groups(partitions, groups)
    assert [k for first, end in made for k in range(first, end)] == list(range(partitions))
    lengths = {end - first for first, end in made}
    assert len(made) == min(partitions, max(1, groups))
    assert max(lengths) - min(lengths) <= 1
    assert min(lengths) >= 1
