"""The job log of a stage that is reused, entered, given up and released at once."""

from dataclasses import replace

import pytest

from protocol import job_model as job
from protocol.explorer import explore
from protocol.job_model import JobModel, JobModelState, all_over

MAX_STATES = 500_000
BEGUN = JobModel(("writer", "collector", "releaser"), counts=False)
LOST = JobModel(("reuser", "releaser", "releaser"), losses=1)


def used_or_gone(state: JobModelState) -> bool:
    """Return whether somebody used the stage and somebody released it."""
    return not state.data and any(me.phase == "used" for me in state.actors)


@pytest.mark.parametrize(
    ("model", "states"),
    [
        (JobModel(("reuser", "reuser", "releaser")), 2_585),
        (JobModel(("reuser", "releaser", "releaser")), 2_684),
        (LOST, 3_012),
        (BEGUN, 2_686),
        (JobModel(("reuser", "writer", "collector", "releaser"), counts=False, losses=1), 30_842),
    ],
    ids=["two reuse", "two release", "RELEASED lost", "begun", "all"],
)
def test_a_released_stage_stays_released(model: JobModel, states: int) -> None:
    """With all rules on nobody uses what was released before, nothing that counts is deleted, and
    all come to an end."""
    found = explore(model, max_states=MAX_STATES, wanted=used_or_gone, can_always_finish=all_over)
    print(found)
    assert found.holds, found
    assert found.states == states
    assert found.wanted > 50


@pytest.mark.parametrize(
    ("model", "damage", "steps"),
    [
        (replace(BEGUN, fold_voids=False, append_refuses=False), job.COUNTS_AGAIN, 6),
        (replace(BEGUN, append_refuses=False), job.FALSE_SUCCESS, 6),
        (JobModel(decides_first=False), job.COUNTED_GONE, 4),
        (JobModel(obeys_fence=False), job.FENCED_WROTE, 6),
        (replace(BEGUN, gives_up_begun_only=False), job.LIVE_GIVEN_UP, 6),
        (replace(LOST, looks_at_stage=False), job.REUSES_GONE, 11),
    ],
    ids=[
        "STAGE behind RELEASED is sent and counts",
        "STAGE behind RELEASED is sent",
        "deletes without RELEASED",
        "fenced goes on",
        "gives up what counts",
        "does not look at the stage's log",
    ],
)
def test_each_rule_is_needed(model: JobModel, damage: str, steps: int) -> None:
    """Off, a shortest trace of known length leads to the damage."""
    found = explore(model, max_states=MAX_STATES)
    print(found)
    assert damage in found.traces, found
    assert len(found.traces[damage]) == steps, found


def test_void_in_the_fold_is_a_second_defence() -> None:
    """Who looks before it sends never puts STAGE behind RELEASED; the fold holds it for who does
    not."""
    assert explore(replace(BEGUN, fold_voids=False), max_states=MAX_STATES).holds
