"""Names that the Connect client draws for frames count by position; other texts never do."""

import pytest

from durable_shuffle.jobs.identity.connect.message import ConnectPlan

proto = pytest.importorskip("pyspark.sql.connect.proto")
NAMES = [f"_pyspark_connect_temp_view_{digit * 32}" for digit in "abc"]


def tokens(name: str, literal: str) -> list[str]:
    """Return the identity of `select 'literal' from {frame}`, the frame drawn as `name`."""
    relation = proto.Relation()
    relation.with_relations.root.sql.query = f"select '{literal}' from {name}"
    reference = relation.with_relations.references.add()
    reference.subquery_alias.alias = name
    reference.subquery_alias.input.range.end = 3
    plan = ConnectPlan(lambda _: None)
    plan.walk(relation)
    return plan.tokens


def test_another_drawn_name_is_the_same_plan() -> None:
    """The client draws a name in each call of `sql`."""
    assert tokens(NAMES[0], "x") == tokens(NAMES[1], "x")


def test_a_text_that_looks_like_a_drawn_name_is_compared() -> None:
    """Two literals are two plans, whatever they look like."""
    assert tokens(NAMES[0], NAMES[1]) != tokens(NAMES[0], NAMES[2])
