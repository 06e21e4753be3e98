"""The rules by which runs of a streaming query and write jobs share a log: on, all holds; off,
damage follows."""

from dataclasses import replace

import pytest

from protocol import run_values as runs
from protocol.explorer import Exploration, explore
from protocol.run_model import RunModel
from protocol.run_values import RunSetup

PLAIN = RunSetup()
AGAIN = RunSetup(crashes=0, repeats=1)
CRASHES = RunSetup(crashes=2, timeouts=0)
CLEANED = RunSetup(collections=1)
JOBS = RunSetup(runs=0, jobs=2, repeats=1, collections=1)
MIXED = RunSetup(runs=1, jobs=1, repeats=1, collections=1, crashes=0)

OFF = {
    "a batch that is there is appended again": (
        replace(PLAIN, drops_known_batch=False),
        runs.DOUBLED,
    ),
    "a commit that comes again deletes what it was given": (
        replace(AGAIN, timeouts=0, keeps_standing=False),
        runs.NAMED_OBJECT_GONE,
    ),
    "a commit whose reply was lost comes again and deletes": (
        replace(PLAIN, crashes=0, keeps_standing=False),
        runs.NAMED_OBJECT_GONE,
    ),
    "a commit opens and appends what was written before": (
        replace(CLEANED, parts_carry_epoch=False, looks_back=False),
        runs.NAMED_OBJECT_GONE,
    ),
    "a run that was followed does not look back": (replace(PLAIN, looks_back=False), runs.REOPENED),
    "a lost APPEND is sent to the end": (replace(PLAIN, asks_again=False), runs.FENCED_APPENDED),
    "an unanswered APPEND's segment goes": (
        replace(PLAIN, keeps_sent=False),
        runs.NAMED_OBJECT_GONE,
    ),
    "a cleaner takes what no record names": (
        replace(CLEANED, spares_owner=False),
        runs.NAMED_OBJECT_GONE,
    ),
    "a write job does not look for itself": (replace(JOBS, knows_itself=False), runs.JOB_DOUBLED),
    "a write job that lost a slot gives up": (replace(JOBS, rebases=False), runs.JOB_REFUSED),
    "a cleaner takes a write job's rows without an ABORT": (
        replace(JOBS, aborts_first=False),
        runs.NAMED_OBJECT_GONE,
    ),
    "a write job does not obey an ABORT": (
        replace(JOBS, obeys_abort=False),
        runs.NAMED_OBJECT_GONE,
    ),
}


def visit(setup: RunSetup, *, damage: str | None = None) -> Exploration:
    done = runs.all_done if setup.runs else runs.all_told
    model = RunModel(setup)
    return explore(
        model,
        max_states=900_000,
        only=None if damage is None else [damage],
        wanted=done,
        can_always_finish=done if damage is None else None,
        excuse=model.none_left if setup.runs else None,
    )


@pytest.mark.requirement("R-F135-28")
@pytest.mark.parametrize("setup", [PLAIN, AGAIN, CRASHES, CLEANED, JOBS, MIXED])
def test_runs_hold_and_can_always_finish(setup: RunSetup) -> None:
    """Every batch and every write job stands once, batches in order, whoever dies, whatever is
    committed again; and can, while a run is left."""
    result = visit(setup)
    print(result)
    assert result.holds
    assert result.wanted > 0


@pytest.mark.parametrize("twins", [1, 2, 3])
def test_nobody_is_excused_without_faults(twins: int) -> None:
    """Runs that are alive at once cannot bring each other to a halt."""
    result = visit(RunSetup(runs=twins, crashes=0, timeouts=0))
    print(result)
    assert result.holds
    assert result.excused == 0


@pytest.mark.parametrize("jobs", [2, 3])
def test_write_jobs_all_succeed_without_faults(jobs: int) -> None:
    """Whoever is faster: in every end all of them stand in the log."""
    model = RunModel(RunSetup(runs=0, jobs=jobs, crashes=0, timeouts=0, repeats=1))
    result = explore(
        model,
        max_states=900_000,
        wanted=lambda s: all(r.phase == "done" for r in s.runs),
        can_always_finish=lambda s: all(r.phase == "done" for r in s.runs),
    )
    print(result)
    assert result.holds


@pytest.mark.soak
@pytest.mark.parametrize(
    "setup",
    [
        RunSetup(runs=3),
        RunSetup(repeats=1, collections=1),
        RunSetup(runs=0, jobs=3, repeats=1, collections=1),
        RunSetup(runs=2, jobs=1, crashes=0, timeouts=1, collections=1),
    ],
)
def test_more_actors_hold(setup: RunSetup) -> None:
    """As above, with more runs, jobs and faults at once."""
    done = runs.all_done if setup.runs else runs.all_told
    result = explore(RunModel(setup), max_states=8_000_000, wanted=done)
    print(result)
    assert result.holds
    assert result.wanted > 0


@pytest.mark.parametrize("name", OFF)
def test_a_rule_off_gives_a_trace(name: str) -> None:
    """Without the rule the damage is reached."""
    setup, damage = OFF[name]
    result = visit(setup, damage=damage)
    print(name, result)
    assert damage in result.traces
