"""What external commands come to: tables of state and command in, state and requests out."""

import dataclasses
from collections.abc import Callable

import pytest

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.pipeline.commands import requests as module
from durable_shuffle.recovery.pipeline.commands.requests import (
    REQUESTS,
    AllowRelease,
    ChangeSettings,
    Description,
    DropPart,
    ExternalCommand,
    Reconcile,
    RestartPart,
    ResumeIt,
    RunThis,
    StopIt,
    Wanted,
    handle,
)
from durable_shuffle.recovery.pipeline.plan.updates import Changes, PlanPart, changes
from durable_shuffle.serialization.control import encode_control
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)


def run(version: str) -> RunThis:
    return RunThis("r", Description("m:f", "", version))


def drop(part: str) -> DropPart:
    return DropPart("d", part)


def full(*commands: ExternalCommand) -> Reconcile:
    return Reconcile("l", tuple(REQUESTS.encode(command) for command in commands))


def stop(mode: StopMode) -> StopIt:
    return StopIt("s", mode)


EVERY: list[ExternalCommand] = [
    run("1"),
    stop(StopMode.SUSPEND),
    ResumeIt("r"),
    drop("p"),
    RestartPart("x", "p", "why"),
    AllowRelease("a", "stage"),
    ChangeSettings("c", {"commit_rows": 3}),
]


def after(*commands: ExternalCommand) -> Wanted:
    state = Wanted()
    for command in commands:
        state = handle(state, command).wanted
    return state


@pytest.mark.requirement("R-MZ-1")
@pytest.mark.parametrize("command", EVERY, ids=lambda c: c.KIND)
def test_a_command_yields_state_and_requests_alone(command: ExternalCommand) -> None:
    """Values that are stored as they are; nothing is called, nothing can be."""
    before = Wanted()
    found = handle(before, command)
    assert before == Wanted(), "the state that went in is untouched"
    for request in found.requests:
        assert REQUESTS.decode(REQUESTS.encode(request), name="x") == request
        assert not any(callable(v) for v in dataclasses.asdict(request).values())
    assert found.requests == (command,)


@pytest.mark.requirement("R-MZ-1")
def test_the_handler_cannot_reach_a_launcher_or_a_view() -> None:
    """What it imports holds no launcher, no view, no storage, no thread."""
    reachable = {getattr(value, "__module__", "") for value in vars(module).values()}
    ours = {name for name in reachable if name.startswith("durable_shuffle")}
    assert ours <= {
        "durable_shuffle.recovery.pipeline.commands.requests",
        "durable_shuffle.serialization.control",
        "durable_shuffle.recovery.job.ends",
        "durable_shuffle.serialization.errors",
    }


STOPS = {
    (StopMode.SUSPEND, StopMode.SUSPEND): "taken",
    (StopMode.SUSPEND, StopMode.CANCEL): "taken",
    (StopMode.SUSPEND, StopMode.DRAIN): "refused",
    (StopMode.DRAIN, StopMode.SUSPEND): "refused",
    (StopMode.DRAIN, StopMode.CANCEL): "taken",
    (StopMode.CANCEL, StopMode.DRAIN): "refused",
}


@pytest.mark.parametrize(("first", "second"), STOPS, ids=str)
def test_stops_during_a_stop(first: StopMode, second: StopMode) -> None:
    state = after(stop(first))
    if STOPS[first, second] == "taken":
        assert handle(state, stop(second)).wanted.stop is second
    else:
        with pytest.raises(InvalidInputError, match="comes too late"):
            handle(state, stop(second))


@pytest.mark.parametrize("end", [StopMode.DRAIN, StopMode.CANCEL])
@pytest.mark.parametrize(
    "late", [run("2"), ResumeIt("r"), drop("p"), ChangeSettings("c", {"commit_rows": 1})]
)
def test_what_ends_for_good_is_not_changed(end: StopMode, late: ExternalCommand) -> None:
    with pytest.raises(InvalidInputError, match=f"ends by {end}"):
        handle(after(stop(end)), late)


def test_a_suspended_pipeline_is_changed_for_when_it_goes_on() -> None:
    state = after(stop(StopMode.SUSPEND), run("2"), ResumeIt("r"))
    assert (state.stop, state.run) == (None, Description("m:f", "", "2"))


LIST: list[ExternalCommand] = [run("2"), drop("p"), run("3"), AllowRelease("a", "stage")]


@pytest.mark.requirement("R-MZ-9")
def test_a_list_counts_whole() -> None:
    """By its last words; what it does not name is not wanted any more."""
    live = after(run("live"), ChangeSettings("c", {"commit_rows": 9}))
    found = handle(live, full(*LIST))
    kinds = [request.KIND for request in found.requests]
    assert kinds == ["CONFIGURE", "RUN", "DROP", "ALLOW_RELEASE", "RECONCILE"]
    assert found.wanted.run == Description("m:f", "", "3"), "the last of several"
    assert not found.wanted.settings, "what is not in the list is not wanted"


BAD: dict[str, tuple[bytes, type[Exception], str]] = {
    "a stop": (REQUESTS.encode(stop(StopMode.DRAIN)), InvalidInputError, "does not hold STOP"),
    "a list": (REQUESTS.encode(full(run("1"))), InvalidInputError, "does not hold RECONCILE"),
    "cut off": (REQUESTS.encode(run("4"))[:-1], CorruptDataError, "RECONCILE l"),
    "unknown": (encode_control("MAKE_TEA", {}), IncompatibleError, "MAKE_TEA"),
}


@pytest.mark.requirement("R-MZ-9")
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("k", range(len(LIST) + 1))
def test_a_list_counts_whole_or_not_at_all(k: int, bad: str) -> None:
    """One bad command behind any k good ones: nothing has changed, and the next list counts."""
    live = after(run("live"), ChangeSettings("c", {"commit_rows": 9}))
    good = full(*LIST).commands
    data, error, text = BAD[bad]
    with pytest.raises(error, match=text):
        handle(live, Reconcile("l", (*good[:k], data, *good[k:])))
    assert live == after(run("live"), ChangeSettings("c", {"commit_rows": 9}))
    with pytest.raises(InvalidInputError, match="names what should run"):
        handle(live, full(drop("p")))
    with pytest.raises(InvalidInputError, match="ends by DRAIN"):
        handle(after(stop(StopMode.DRAIN)), full(*LIST))


@pytest.mark.requirement("R-MZ-18")
def test_what_is_wanted_stays_short_and_keeps_a_drop() -> None:
    """However many commands there were: last words; a drop until it was done."""
    state = after(drop("zombie"), drop("zombie"))
    for n in range(1000):
        commands: list[ExternalCommand] = [
            run(str(n)),
            ChangeSettings("c", {"commit_rows": n + 1}),
            stop(StopMode.SUSPEND),
            ResumeIt("r"),
            AllowRelease("a", f"stage{n % 2}", {"0": n}),
        ]
        for command in commands:
            state = handle(state, command).wanted
    assert state == Wanted(
        run("999").description,
        None,
        {"commit_rows": 1000},
        (drop("zombie"),),
        (AllowRelease("a", "stage0", {"0": 998}), AllowRelease("a", "stage1", {"0": 999})),
    )
    state = handle(state, full(run("4"))).wanted
    listed = Wanted(run("4").description, drops=(drop("zombie"),))
    assert state == listed, "a list that does not know of it"
    assert state.without(drop("zombie")) == Wanted(run("4").description)
    again = handle(state, full(run("4"), drop("zombie"), drop("other")))
    assert again.wanted.drops == (drop("zombie"), drop("other"))


SAME, OTHER = "digest", "other"
TABLE: dict[str, tuple[dict[str, PlanPart], Callable[[Changes], bool]]] = {
    "the same": ({"a": PlanPart("a", "s", SAME)}, lambda c: c.keep == ("a",) and c.nothing),
    "another step": ({"a": PlanPart("a", "s", OTHER)}, lambda c: c.replace == ("a",)),
    "not to be told": ({"a": PlanPart("a", "s", "")}, lambda c: c.replace == ("a",)),
    "one more": (
        {"a": PlanPart("a", "s", SAME), "b": PlanPart("b", "s", SAME)},
        lambda c: c.keep == ("a",) and c.start == ("b",),
    ),
    "none": ({}, lambda c: c.drop == ("a",)),
}


@pytest.mark.requirement("R-MZ-10")
@pytest.mark.parametrize("case", TABLE)
def test_what_runs_against_what_should(case: str) -> None:
    running = {"a": PlanPart("a", "s", SAME)}
    wanted, check = TABLE[case]
    assert check(changes(running, wanted, running_version="1", wanted_version="2"))


@pytest.mark.requirement("R-MZ-10")
def test_another_shape_is_refused_by_both_versions() -> None:
    with pytest.raises(IncompatibleError, match="version '1' has old shape; version '2' has new"):
        changes(
            {"a": PlanPart("a", "old shape", SAME)},
            {"b": PlanPart("b", "s", SAME), "a": PlanPart("a", "new shape", SAME)},
            running_version="1",
            wanted_version="2",
        )
