"""What must hold in every state of consumer_model.py."""

from collections.abc import Iterator

from protocol.consumer_values import (
    EFFECT_LOST,
    FALSE_LOSER,
    FALSE_WINNER,
    NAMED_OBJECT_GONE,
    NEWEST_FENCED,
    NOBODY_FINISHES,
    NOT_EXACTLY_ONCE,
    OUTPUT_NOT_CONTIGUOUS,
    PUBLISHED_TWICE,
    TWO_VIEWS,
    Attempt,
    ConsumerSetup,
    ConsumerState,
    Receiver,
)

ENDED = ("dead", "done", "fenced", "released")


def consumer_damage(setup: ConsumerSetup, state: ConsumerState) -> list[str]:
    """Name the invariants that do not hold in `state`."""
    return [
        *_output_damage(setup, state),
        *_belief_damage(setup, state),
        *_ending_damage(setup, state),
    ]


def _visible(setup: ConsumerSetup, state: ConsumerState) -> list[tuple[int, int]]:
    """Return the ranges of records that a reader of the output sees, in log order."""
    if setup.one_record:
        return [(x.start, x.end) for record in state.log for x in record.outputs]
    return list(state.published)


def _output_damage(setup: ConsumerSetup, state: ConsumerState) -> Iterator[str]:
    if not setup.one_record:
        shown = [ordinal for start, end in state.published for ordinal in range(start, end)]
        if len(set(shown)) < len(shown):
            yield PUBLISHED_TWICE
        return
    expected = 0
    for start, end in _visible(setup, state):
        if start != expected:
            yield OUTPUT_NOT_CONTIGUOUS
        expected = end
    if any(output not in state.objects for record in state.log for output in record.outputs):
        yield NAMED_OBJECT_GONE


def _may_acknowledge(state: ConsumerState, attempt: Attempt) -> bool:
    """Its next ACK would win, as far as the log goes now."""
    if attempt.slot != len(state.log) - 1:
        return False
    if attempt.phase in ("waiting", "unknown"):
        return attempt.request is not None and attempt.request.record.kind == "ACK"
    return attempt.phase in ("reading", "published", "effect")


def _belief_damage(setup: ConsumerSetup, state: ConsumerState) -> Iterator[str]:
    log = state.log
    if sum(_may_acknowledge(state, attempt) for attempt in state.attempts) > 1:
        yield TWO_VIEWS
    if not setup.open_has_id:
        return
    for who, attempt in enumerate(state.attempts):
        holds_slot = 0 <= attempt.slot < len(log) and log[attempt.slot].author == who
        if attempt.phase == "fenced" and holds_slot:
            yield FALSE_LOSER
        acknowledging = (
            attempt.phase == "waiting"
            and attempt.request is not None
            and attempt.request.record.kind == "ACK"
        )
        believes = attempt.phase in ("reading", "effect", "done") or acknowledging
        owns_views = setup.wins_open and not setup.shares_open
        if believes and attempt.slot >= 0 and owns_views and not holds_slot:
            yield FALSE_WINNER


def _ending_damage(setup: ConsumerSetup, state: ConsumerState) -> Iterator[str]:
    phases = [attempt.phase for attempt in state.attempts]
    if "done" in phases:
        ordinals = [n for start, end in _visible(setup, state) for n in range(start, end)]
        if not setup.one_record:
            ordinals.sort()
        if ordinals != list(range(setup.records)):
            yield NOT_EXACTLY_ONCE
        tokens = {record.pending for record in state.log if record.kind == "ACK"}
        if (
            setup.effects
            and setup.receiver is Receiver.ALL_TOKENS
            and tokens - state.performed
            and all(phase in ("dead", "done", "fenced", "idle") for phase in phases)
        ):
            yield EFFECT_LOST
    opens = [record for record in state.log if record.kind == "OPEN"]
    own_opens = setup.wins_open and not setup.shares_open and setup.open_has_id
    if own_opens and not setup.trusts_hint and opens and all(p in ENDED for p in phases):
        newest = opens[-1].author
        if newest is not None and phases[newest] == "fenced":
            yield NOBODY_FINISHES
    if phases[-1] == "fenced" and "idle" not in phases:
        yield NEWEST_FENCED
