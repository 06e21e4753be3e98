"""Reuse, resume or start fresh: every branch of the decision, as a table."""

import pytest

from durable_shuffle.recovery.resume import (
    Fresh,
    KnownStage,
    Repair,
    Resume,
    Reuse,
    WantedStage,
    decide,
    explain_miss,
)
from durable_shuffle.serialization.errors import IncompatibleError

PLAN = WantedStage(3, "splits", ())
UNSTABLE = WantedStage(3, "splits", ("rand()", "uuid()"))
UNPLANNED = WantedStage(None, "", ())


def found(
    committed: tuple[int, ...] = (), *, sealed: bool = False, m: int | None = 3, s: str = "splits"
) -> KnownStage:
    """What storage shows."""
    return KnownStage(sealed, m, s, frozenset(committed))


def lost(*producers: int, m: int = 3, s: str = "splits", commits: int = 1) -> KnownStage:
    """A sealed stage with damage."""
    return KnownStage(True, m, s, frozenset(), frozenset(producers), commits)


def used_once(*, sealed: bool) -> KnownStage:
    """A stage that one call may use."""
    return KnownStage(sealed, 3, "splits", frozenset({0}), unrecognised=("x",))


TABLE = [
    # wanted, found, decision under "auto", what the reason says
    (PLAN, None, Fresh, "no stage with this name and fingerprint"),
    (PLAN, found(sealed=True), Reuse, "stored"),
    (UNPLANNED, found(sealed=True), Reuse, "stored"),
    (UNSTABLE, found((0, 1, 2), sealed=True), Reuse, "stored"),
    (PLAN, found(sealed=True, m=9, s="other"), Reuse, "stored"),
    (PLAN, used_once(sealed=True), Fresh, "cannot be recognized in another run: they depend on x"),
    (PLAN, used_once(sealed=False), Fresh, "cannot be recognized in another run: they depend on x"),
    (PLAN, found((0,), m=4), Fresh, "stored=4 now=3"),
    (PLAN, found((0,), m=None), Fresh, "stored=None now=3"),
    (PLAN, found((0,), s="other"), Fresh, "other input splits"),
    (UNSTABLE, found((0,)), Fresh, "rand(), uuid(): rows may be others in another run"),
    (UNSTABLE, found(), Resume, "0 map tasks are stored"),
    (PLAN, found(), Resume, "0 map tasks are stored"),
    (PLAN, found((0, 2)), Resume, "2 map tasks are stored"),
    (PLAN, found((0, 1, 2)), Resume, "3 map tasks are stored"),
    (WantedStage(0, "", ()), found(m=0, s=""), Resume, "0 map tasks are stored"),
    (PLAN, lost(2), Repair, "data of 1 map tasks is lost"),
    (PLAN, lost(2, m=4), Fresh, "stored=4 now=3"),
    (PLAN, lost(2, s="other"), Fresh, "other input splits"),
    (UNSTABLE, lost(2), Fresh, "rand(), uuid(): rows may be others in another run"),
    (PLAN, lost(2, commits=7), Repair, "data of 1 map tasks is lost"),
    (PLAN, lost(2, commits=8), Fresh, "lost after 8 commits"),
]


@pytest.mark.requirement("R-F135-19")
@pytest.mark.parametrize(("wanted", "stored", "decision", "why"), TABLE)
def test_decision_under_auto(
    wanted: WantedStage, stored: KnownStage, decision: type, why: str
) -> None:
    """The class of the decision and the reason that people see."""
    made = decide(wanted, stored, "auto")
    assert type(made) is decision
    assert why in made.why


@pytest.mark.parametrize(
    ("committed", "missing"), [((), (0, 1, 2)), ((1,), (0, 2)), ((0, 1, 2), ()), ((0, 7), (1, 2))]
)
def test_resume_runs_exactly_the_missing_producers(
    committed: tuple[int, ...], missing: tuple[int, ...]
) -> None:
    """In ascending order; those beyond M are not asked for."""
    made = decide(PLAN, found(committed), "auto")
    assert isinstance(made, Resume)
    assert made.missing == missing


@pytest.mark.parametrize(("wanted", "stored", "decision", "why"), TABLE)
def test_require_reuses_and_resumes_but_never_starts_fresh(
    wanted: WantedStage, stored: KnownStage, decision: type, why: str
) -> None:
    """IncompatibleError with the reason instead of a fresh stage; else the same decision."""
    if decision is Fresh:
        with pytest.raises(IncompatibleError) as caught:
            decide(wanted, stored, "require")
        assert why in str(caught.value)
        assert "reuse='require'" in str(caught.value)
    else:
        assert decide(wanted, stored, "require") == decide(wanted, stored, "auto")


@pytest.mark.parametrize(("wanted", "stored", "decision", "why"), TABLE)
def test_never_always_starts_fresh(
    wanted: WantedStage, stored: KnownStage, decision: type, why: str
) -> None:
    """Whatever is stored."""
    assert decide(wanted, stored, "never") == Fresh("reuse='never' was asked for")


@pytest.mark.parametrize("policy", ["auto", "require"])
def test_the_callers_reason_for_a_miss_is_kept(policy: str) -> None:
    """It knows better why there is no such stage."""
    if policy == "auto":
        assert decide(PLAN, None, "auto", "the code changed") == Fresh("the code changed")
    else:
        with pytest.raises(IncompatibleError, match="the code changed"):
            decide(PLAN, None, "require", "the code changed")


@pytest.mark.parametrize(
    ("wanted", "stored", "said"),
    [
        ({"plan": "1"}, {"plan": "1"}, "nothing differs"),
        ({"plan": "1", "m": "2"}, {"plan": "3", "m": "2"}, "in: plan"),
        ({"b": "1", "a": "1"}, {"b": "2", "a": "2"}, "in: a, b"),
        ({"plan": "1", "version": "9"}, {"plan": "1"}, "in: version"),
        ({}, {"plan": "1"}, "in: plan"),
        ({}, {}, "nothing differs"),
    ],
)
def test_a_miss_is_explained_by_the_aspects_that_differ(
    wanted: dict[str, str], stored: dict[str, str], said: str
) -> None:
    """Sorted names, also of aspects that only one side has."""
    assert explain_miss(wanted, [stored]).endswith(said)


def test_a_miss_is_explained_by_the_stage_most_like_it() -> None:
    """Stages of one query share a name: the one that only differs in its filter is meant."""
    wanted = {"plan": "1", "files": "a", "settings": "s"}
    same_files = {"plan": "2", "files": "a", "settings": "s"}
    unlike = {"plan": "3", "files": "b", "settings": "s"}
    assert explain_miss(wanted, [same_files, unlike]).endswith("in: plan")
    newest = {"plan": "1", "files": "b", "settings": "s"}
    assert explain_miss(wanted, [same_files, unlike, newest]).endswith("in: files")
