"""Who restarts with whom."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.recovery.job.restarts import Edge, EdgeKind, RestartGraph
from durable_shuffle.serialization.errors import InvalidInputError

PATHS = (("v1", "v2"), ("v1", "v3"), ("v2", "v4"), ("v3", "v4"))
TASKS = ("v1", "v2", "v3", "v4")


def diamond(kind: EdgeKind) -> RestartGraph:
    """v1 -> {v2, v3} -> v4."""
    return RestartGraph(TASKS, [Edge(a, b, kind) for a, b in PATHS])


@pytest.mark.requirement("R-F135-20")
@pytest.mark.parametrize(
    ("failed", "expected"),
    [
        ("v1", {"v1", "v2", "v3", "v4"}),
        ("v2", {"v2", "v4"}),
        ("v3", {"v3", "v4"}),
        ("v4", {"v4"}),
    ],
)
def test_the_diamond_of_results_that_are_written_again(failed: str, expected: set[str]) -> None:
    """What comes before is a boundary; who read of it restarts, as in Flink's table."""
    assert diamond("rewritten").restart_set([failed]) == expected


@pytest.mark.requirement("R-F135-20")
@pytest.mark.requirement("R-F135-26")
@pytest.mark.parametrize("failed", TASKS)
def test_the_diamond_of_logs_that_are_continued(failed: str) -> None:
    """Everybody restarts alone: nobody waits for anything of one that did not restart."""
    assert diamond("continued").restart_set([failed]) == {failed}


@pytest.mark.parametrize("failed", TASKS)
def test_the_diamond_of_volatile_data(failed: str) -> None:
    """One region: all restart."""
    assert diamond("volatile").restart_set([failed]) == set(TASKS)


def test_a_lost_output_brings_its_producer_back_and_its_readers() -> None:
    """A missing input is written again, and with it goes everybody who may have read the old."""
    graph = diamond("rewritten")
    assert graph.restart_set(["v4"], lost_outputs_of=["v2"]) == {"v2", "v4"}
    assert graph.restart_set(["v2"], lost_outputs_of=["v1"]) == set(TASKS)


def test_a_stranger_is_refused() -> None:
    """Neither edges nor failures name tasks that there are not."""
    with pytest.raises(InvalidInputError, match="v9"):
        RestartGraph(TASKS, [Edge("v1", "v9", "volatile")])
    with pytest.raises(InvalidInputError, match="v9"):
        diamond("volatile").restart_set(["v9"])


KINDS = st.sampled_from(["volatile", "rewritten", "continued"])


@given(
    st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), KINDS), max_size=14),
    st.sets(st.integers(0, 7), min_size=1),
    st.sets(st.integers(0, 7)),
)
def test_the_set_is_the_smallest_closed_one(
    drawn: list[tuple[int, int, EdgeKind]], failed: set[int], lost: set[int]
) -> None:
    """Against a slow oracle: add what a rule asks for until no rule asks for more."""
    edges = [Edge(str(a), str(b), kind) for a, b, kind in drawn if a != b]
    graph = RestartGraph([str(n) for n in range(8)], edges)
    expected = {str(n) for n in failed}
    while True:
        more = set(expected)
        for edge in edges:
            if edge.kind == "volatile" and {edge.producer, edge.consumer} & more:
                more |= {edge.producer, edge.consumer}
            if edge.kind == "rewritten" and edge.producer in more:
                more.add(edge.consumer)
            if edge.consumer in more and int(edge.producer) in lost:
                more.add(edge.producer)
        if more == expected:
            break
        expected = more
    found = graph.restart_set([str(n) for n in failed], [str(n) for n in lost])
    assert found == expected
