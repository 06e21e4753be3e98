"""Random programs give Spark's own rows through durable stages, and a second driver recognises
them. `tests/support/random_steps.py` has the steps of a program.
"""

import os
from itertools import islice
from pathlib import Path
from typing import Any

import differential
import pytest
from differential import Family
from pyspark.sql import SparkSession
from random_programs import random_program
from random_steps import LEAVES, STEPS
from random_tables import write_tables

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(3600),
    # programs name the kind of a pandas function, because a lambda has no type hints
    pytest.mark.filterwarnings("ignore:In Python 3.6.*type hints for pandas UDF:UserWarning"),
]

EVERYDAY_SEED = 2674141284
"""Everyday programs are the same in each run, so only a code change can make them fail.
DURABLE_SHUFFLE_SEED draws others, and `make soak` does so in each run."""
BATCH = 12
EVERYDAY_BATCHES = 10
PARTS, PART_BATCHES = 10, 42
"""`make soak` runs 5,040 programs, in parts of 504, and resumes by part."""


@pytest.fixture
def everyday_seed(seed: int) -> int:
    return EVERYDAY_SEED if "DURABLE_SHUFFLE_SEED_DRAWN" in os.environ else seed


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("differential")
    write_tables(spark, folder)
    return folder


def check(family: Family, seeds: list[str]) -> None:
    """Run the programs of some seeds; show all that differ, reduced."""
    failed = [str(case) for seed in seeds for case in family.batch(seed, BATCH)]
    print(family.tally)
    assert not failed, "\n\n".join(failed)
    assert family.tally.producers > family.tally.programs / 2, "little was stored"
    assert family.tally.unresolved < family.tally.programs / 4, "little was recognised"
    assert family.tally.refused < family.tally.programs / 4, "Spark refuses too many programs"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(EVERYDAY_BATCHES))
def test_random_programs(
    spark: SparkSession, tables: Path, root: str, everyday_seed: int, batch: int
) -> None:
    """Programs give Spark's rows, and a second driver runs no producer."""
    check(Family(spark, tables, root), [f"{everyday_seed}-{batch}"])


@pytest.mark.soak
@pytest.mark.parametrize("part", [f"part{i}" for i in range(PARTS)])
def test_random_programs_many(
    spark: SparkSession, tables: Path, root: str, seed: int, part: str
) -> None:
    """Like the test that always runs, with many programs; the report's header has the seed."""
    check(Family(spark, tables, root), [f"{seed}-{part}-{i}" for i in range(PART_BATCHES)])


@pytest.mark.soak
def test_a_second_process_runs_no_producer(
    spark: SparkSession, tables: Path, root: str, everyday_seed: int, programs: Any
) -> None:
    """Another process reads what one process stored: the same rows, and no producer runs."""
    name = f"{everyday_seed}-process"
    cases = Family(spark, tables, root).first(name, 12)
    assert [str(case) for case in cases if case.what] == []
    known = [case for case in cases if not case.wanted.unresolved]
    found = programs.run("differential_driver", tables, root, name, *(c.name for c in known))
    assert found["rows"] == [sorted(case.wanted.rows) for case in known]
    assert found["ran"] == [[] for _ in known]


@pytest.mark.soak
def test_a_family_finds_lost_rows_and_shrinks(
    spark: SparkSession, tables: Path, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `DurableShuffle` that loses one row per stored frame is found with a small program."""

    class Losing(differential.DurableShuffle):
        def durable(self, df: Any, **more: Any) -> Any:
            kept = super().durable(df, **more)
            return kept.limit(max(0, kept.count() - 1))

    monkeypatch.setattr(differential, "DurableShuffle", Losing)
    family = Family(spark, tables, root)
    batches = (
        batch
        for batch in map(str, range(1000))
        if (drawn := random_program(f"{batch}-0", STEPS, LEAVES)).way == "durable"
        and drawn.tree.size() == 4
    )
    failed = [case for batch in islice(batches, 3) for case in family.batch(batch, 1)]
    case = min(failed, key=lambda case: case.program.tree.size())
    assert case.program.way == "durable"
    assert case.program.tree.size() <= 2
    assert "only Spark's" in case.what


SHOWN = [
    "select bit_xor(id), count(distinct id) from range(0, 20, 1, 2)",
    "select c1, sum(distinct c2) from (select c3, grouping_id() as c1, avg(c3) as c2 from"
    " (select explode(array(1, null, 3)) as c3 from range(0, 4, 1, 2)) group by rollup(c3))"
    " group by c1",
    "select count_if(id > 1), count(distinct id), count(distinct id % 3) from range(0, 20, 1, 2)",
    "select id % 2 as k, count(distinct id % 2), count_if(id > 1), count(distinct id % 3)"
    " from range(0, 20, 1, 2) group by id % 2",
    "select * from (select id % 3 as k from range(0, 20, 1, 2)) pivot (count(*) for k in (0, 1))",
    "select * from {a} pivot (max(id) for id in (0, 1))",
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", SHOWN, ids=range(len(SHOWN)))
def test_programs_that_were_not_recognised(spark: SparkSession, root: str, text: str) -> None:
    """Queries that ran again in a second session because a name contained a JVM counter."""
    for ran in (True, False):
        session = spark.newSession()
        store = differential.DurableShuffle(session, root, job="tests")
        df = session.sql(text, a=session.range(0, 4, 1, 2))
        assert store.query(df).collect() == df.collect()
        assert bool(store.report().total()["map_tasks_run"]) is ran
