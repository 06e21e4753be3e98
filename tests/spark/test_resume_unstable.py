"""A half-written stage is gone on with only if its producers give the same rows in every run.

The first run dies behind some commits. In the second run rows arrive in another order. What every
run of plain Spark has in common holds for the stored rows: all keys, each as often as it should be.
"""

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import unstable_programs
from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
from pyspark.sql import DataFrame, SparkSession
from unstable_programs import STABLE, UNSTABLE, Arrival, Program, of_step, program

from durable_shuffle import DurableShuffle

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

EVERYDAY_SEED, EVERYDAY, BATCHES = 1711, 10, 6
PARTS, EACH_PART = 20, 100
"""`make soak` runs 2,000 programs."""
CALLS: dict[str, Callable[[DurableShuffle, DataFrame], DataFrame]] = {
    "checkpoint": lambda s, df: s.checkpoint(df),
    "repartition": lambda s, df: s.repartition(df, 3, df.columns[0]),
    "turns": lambda s, df: s.repartition(df, 3),
    "stage": lambda s, df: s.stage(df, keys=df.columns[0], num_partitions=3),
}


@pytest.fixture
def everyday_seed(seed: int) -> int:
    return EVERYDAY_SEED if "DURABLE_SHUFFLE_SEED_DRAWN" in os.environ else seed


class Trial:
    """Runs programs in one session, each below a folder of its own."""

    def __init__(self, session: SparkSession, folder: Path, breaker: type[Any]) -> None:
        session.conf.set("spark.sql.shuffle.partitions", "4")
        session.conf.set("spark.sql.adaptive.enabled", "false")
        self._session, self._folder, self._breaker = session, folder, breaker
        self.decisions: Counter[str] = Counter()

    def run(self, program: Program, call: str, number: random.Random) -> str:
        """Return "" if the stored rows are those of one run, else what is wrong."""
        folder = self._folder / str(sum(self.decisions.values()))
        arrival, root = Arrival(folder / "arrival"), str(folder / "root")
        breaker = self._breaker(folder / "breaker", root)
        df = program.steps(arrival.rows(self._session))
        failing = breaker.function(number.randrange(3), after=number.randrange(1, 3))
        broken = df.mapInArrow(failing, df.schema)
        wanted = program.common(df)
        arrival.turn(1)
        with pytest.raises(Exception, match="broken on purpose"):
            CALLS[call](DurableShuffle(self._session, root, job="tests"), broken)
        breaker.mend()
        arrival.turn(2)
        shuffle = DurableShuffle(self._session, root, job="tests")
        found = program.common(CALLS[call](shuffle, broken))
        (stage,) = shuffle.report().stages
        self.decisions[stage.action] += 1
        return "" if found == wanted else f"{program.name}, {call}: {stage.action}, rows of no run"


@pytest.fixture(scope="module", autouse=True)
def _sent_by_value() -> Iterator[None]:
    """Workers cannot import what supports the tests."""
    register_pickle_by_value(unstable_programs)
    yield
    unregister_pickle_by_value(unstable_programs)


@pytest.fixture
def trial(session: SparkSession, tmp_path: Path, breaker: Any) -> Trial:
    return Trial(session, tmp_path / "trials", type(breaker))


def check(trial: Trial, seed: str, count: int) -> None:
    number = random.Random(seed)
    drawn = [(program(number), number.choice(sorted(CALLS))) for _ in range(count)]
    wrong = [trial.run(one, call, number) for one, call in drawn]
    print(trial.decisions)
    assert not any(wrong), "\n".join(filter(None, wrong))
    assert len(trial.decisions) == 2, "programs of one kind only"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_stored_rows_are_those_of_one_run(trial: Trial, everyday_seed: int, batch: int) -> None:
    """Random programs, killed behind a random producer."""
    check(trial, f"{everyday_seed}-{batch}", EVERYDAY)


@pytest.mark.soak
@pytest.mark.parametrize("part", [f"part{i}" for i in range(PARTS)])
def test_stored_rows_are_those_of_one_run_many(trial: Trial, seed: int, part: str) -> None:
    """Like the test that always runs, with many programs."""
    check(trial, f"{seed}-{part}", EACH_PART)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", sorted(STABLE))
def test_stable_rows_are_gone_on_with(trial: Trial, name: str) -> None:
    """What is proven to be the same in any order of arrival is not computed again."""
    assert trial.run(of_step(name, "by turns"), "checkpoint", random.Random(5)) == ""
    assert trial.decisions == {"resumed": 1}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", sorted(UNSTABLE))
def test_unstable_rows_start_again(trial: Trial, name: str) -> None:
    """Each unstable step below an exchange makes the stage start again."""
    assert trial.run(of_step(name, "by turns"), "checkpoint", random.Random(5)) == ""
    assert trial.decisions == {"computed": 1}
