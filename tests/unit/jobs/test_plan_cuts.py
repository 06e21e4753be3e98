"""Cutting a plan, on plain nodes: pieces, reuse, what is read alike, which broadcasts may begin."""

from itertools import count
from typing import NamedTuple

from durable_shuffle.jobs.query.cuts import (
    Exchange,
    PlanPiece,
    cut_plan,
    only_stored,
    read_alike,
    ready_broadcasts,
)
from durable_shuffle.jobs.query.order import (
    Estimate,
    Limits,
    has_joins,
    is_better,
    may_shrink,
    shuffled_joins,
    starts_now,
)
from durable_shuffle.jobs.query.tree import Node

_numbers = count()


def node(name: str, *children: Node, subqueries: tuple[Node, ...] = ()) -> Node:
    return Node(None, name, name, next(_numbers), list(children), list(subqueries))


def scan() -> Node:
    return node("FileSourceScanExec")


def shuffle(child: Node, partitions: int = 8, kind: str = "hash") -> Node:
    made = node("ShuffleExchangeExec", child)
    made.partitioning = Exchange(kind, partitions, fixed=False)  # type: ignore[arg-type]
    return made


def reused(of: Node) -> Node:
    made = node("ReusedExchangeExec")
    made.target = of
    return made


def broadcast(child: Node) -> Node:
    return node("BroadcastExchangeExec", child)


def classify(exchange: Node) -> Exchange | str:
    found: Exchange | str = exchange.partitioning
    return found


def alike(piece: PlanPiece, *, zipped: bool = False) -> list[set[int]]:
    return [set(one) for one in read_alike(piece, lambda _: zipped)]


def test_pieces_between_cuts() -> None:
    """Lower cuts come first; a reused exchange is one cut with two sites."""
    low = shuffle(scan())
    high = shuffle(node("HashAggregateExec", low))
    again = reused(low)
    root = node("SortMergeJoinExec", node("SortExec", high), node("SortExec", again))
    last, cuts = cut_plan(root, classify)
    assert [cut.node for cut in cuts] == [low, high]
    assert cuts[1].piece.cuts == [cuts[0]]
    assert last.sites == {high.id: cuts[1], again.id: cuts[0]}


def test_a_native_exchange_stays_in_its_piece() -> None:
    """What cannot be durable is named and counted, and what is below it still is cut."""
    low = shuffle(scan())
    native = shuffle(node("HashAggregateExec", low))
    native.partitioning = "types do not travel"
    last, cuts = cut_plan(node("HashAggregateExec", native), classify)
    assert [cut.node for cut in cuts] == [low]
    assert last.native == ["types do not travel"]
    assert last.native_shuffles == 1
    assert last.cuts == cuts


def test_subqueries_and_broadcasts_are_cut_inside() -> None:
    """Their exchanges belong to the piece that needs their result."""
    in_subquery, in_broadcast, own = shuffle(scan(), 1), shuffle(scan()), shuffle(scan())
    join = node("BroadcastHashJoinExec", own, broadcast(node("HashAggregateExec", in_broadcast)))
    root = node("FilterExec", join, subqueries=(node("SubqueryExec", in_subquery),))
    last, cuts = cut_plan(root, classify)
    assert {cut.node for cut in last.cuts} == {in_subquery, in_broadcast, own}
    assert len(cuts) == 3
    assert alike(last) == [{own.id}, {in_broadcast.id}]


def test_sides_of_a_join_are_read_alike() -> None:
    """Both sides, through sorts and aggregations, with broadcasts aside."""
    left, right, third = shuffle(scan()), shuffle(scan()), shuffle(scan())
    inner = node("BroadcastHashJoinExec", left, broadcast(scan()))
    join = node("SortMergeJoinExec", node("SortExec", inner), node("SortExec", right))
    last, _ = cut_plan(node("SortMergeJoinExec", join, third), classify)
    assert alike(last) == [{left.id, right.id, third.id}]


def test_a_side_that_is_not_ours_keeps_its_partitions() -> None:
    """Beside a bucketed table, or with other numbers, nothing is read together."""
    ours = shuffle(scan())
    last, _ = cut_plan(node("SortMergeJoinExec", ours, scan()), classify)
    assert alike(last) == []
    assert not only_stored(last)
    last, _ = cut_plan(node("SortMergeJoinExec", shuffle(scan(), 4), shuffle(scan(), 8)), classify)
    assert alike(last) == []


def test_children_of_a_union_are_apart_unless_zipped() -> None:
    """A union that joins partitions one to one counts as a join."""
    a, b = shuffle(scan()), shuffle(scan())
    last, _ = cut_plan(node("UnionExec", a, b), classify)
    assert alike(last) == [{a.id}, {b.id}]
    assert alike(last, zipped=True) == [{a.id, b.id}]
    assert only_stored(last)


def test_a_number_that_the_user_gave_stays() -> None:
    """`repartition(8)` means eight."""
    asked = shuffle(scan())
    asked.partitioning = Exchange("round_robin", 8, fixed=True)
    last, _ = cut_plan(node("ProjectExec", asked), classify)
    assert alike(last) == []


def test_broadcasts_that_read_no_cut_may_begin() -> None:
    """Outermost ones, not those below a cut or above one."""
    early, late = broadcast(scan()), broadcast(shuffle(scan()))
    below = broadcast(scan())
    cut = shuffle(node("BroadcastHashJoinExec", scan(), below))
    join = node("BroadcastHashJoinExec", node("BroadcastHashJoinExec", cut, early), late)
    last, cuts = cut_plan(join, classify)
    assert ready_broadcasts(last) == [early]
    piece = next(c.piece for c in cuts if c.node is cut)
    assert ready_broadcasts(piece) == [below]


def filtered(size: int, condition: str = "(b = 1)") -> Node:
    """A scan of this many bytes below a filter."""
    made = node("FilterExec", scan())
    made.plan = Plan(condition, size)
    return made


class Plan(NamedTuple):
    text: str
    size: int

    def condition(self) -> str:
        return self.text


def starting(*sides: Node, most: int = 100) -> list[int]:
    """The numbers of the sides of one join that start at once."""
    last, cuts = cut_plan(node("SortMergeJoinExec", *map(shuffle, sides)), classify)
    sizes = {cut.number: side.plan.size for cut, side in zip(cuts, sides, strict=True)}
    chosen = starts_now(
        cuts,
        cuts,
        shuffled_joins([last]),
        lambda cut: Estimate(sizes[cut.number], may_shrink(cut.piece)),
        Limits(most),
    )
    return [cut.number for cut in chosen]


def test_a_side_waits_for_one_that_may_turn_out_small() -> None:
    """Only filters with a condition make a side smaller. A side that cannot shrink waits for a
    larger one that can; of two that can, the smaller comes first."""
    certain = "(isnotnull(a#1L) AND isnotnull(b#2))"
    assert starting(filtered(500, certain), filtered(900)) == [1]
    assert starting(filtered(900), filtered(500)) == [1]
    assert starting(filtered(500), filtered(900, certain)) == [0]
    assert starting(filtered(500, certain), filtered(900, certain)) == [0, 1]


def test_a_side_that_reads_little_does_not_wait() -> None:
    """Another round of planning takes longer than its map side."""
    assert starting(filtered(150), filtered(400)) == [0, 1]
    assert starting(filtered(150), filtered(401)) == [0]
    certain = "isnotnull(a#1L)"
    assert starting(filtered(150), filtered(100, certain)) == [0, 1]
    assert starting(filtered(150), filtered(101, certain)) == [0]


def test_only_operators_that_read_several_may_change_with_sizes() -> None:
    """A new plan of the others is the old one."""
    last, _ = cut_plan(node("HashAggregateExec", shuffle(scan())), classify)
    assert not has_joins([last])
    for name in ("BroadcastHashJoinExec", "CartesianProductExec", "of an extension"):
        joined, _ = cut_plan(node("ProjectExec", node(name, shuffle(scan()), scan())), classify)
        assert has_joins([last, joined])


def test_no_side_waits_in_vain() -> None:
    """Not for one that is far too large, and not if Spark broadcasts nothing."""
    assert starting(filtered(500), filtered(99_000)) == [0]
    assert starting(filtered(98_000), filtered(99_000)) == [0, 1]
    assert starting(filtered(500), filtered(900), most=-1) == [0, 1]


def test_sizes_that_may_change_a_plan() -> None:
    """Stages that may be broadcast, and empty ones."""
    assert Limits(100).may_change([(400, 7), (10_000, 9)])
    assert Limits(100).may_change([(10_000, 0)])
    assert not Limits(100).may_change([(10_000, 9)])
    assert not Limits(100).may_change([])


def test_a_plan_with_more_exchanges_is_not_taken() -> None:
    """A join that broadcasts its other side may lose the order of an exchange below it."""
    old = node("SortMergeJoinExec", scan(), shuffle(scan()))
    new = node("SortMergeJoinExec", shuffle(scan()), shuffle(scan()))
    assert not is_better(new, old, {})
    assert is_better(old, new, {})


def test_a_plan_with_other_operators_is_taken() -> None:
    """A shuffled join became a broadcast join, or builds the other side."""
    old = node("SortMergeJoinExec", scan(), scan())
    new = node("BroadcastHashJoinExec", scan(), broadcast(scan()))
    assert is_better(new, old, {})
    other = node("BroadcastHashJoinExec", scan(), broadcast(scan()))
    assert not is_better(other, new, {})
    other.build_side = "BuildLeft"
    assert is_better(other, new, {})
    assert is_better(node("FilterExec", scan()), scan(), {})


def test_a_plan_that_reads_what_was_stored_is_the_same() -> None:
    """Its leaf stands for the exchange, also where the exchange was reused, and whatever wrappers
    of code generation are around."""
    exchange = shuffle(scan())
    below = node("WholeStageCodegenExec", node("ProjectExec", exchange))
    old = node("SortMergeJoinExec", below, reused(exchange))
    _, (cut,) = cut_plan(old, classify)

    def leaf() -> Node:
        made = node("RDDScanExec")
        made.cut = cut
        return made

    new = node("SortMergeJoinExec", node("ProjectExec", node("InputAdapter", leaf())), leaf())
    assert not is_better(new, old, {exchange.id: cut})
    assert is_better(new, old, {}), "nothing of it is stored"
    assert not is_better(new, new, {})
