"""Retry policies: tables of attempts and delays."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.retry import NO_RETRY, Backoff, RetryPolicy, raised


def no_chance() -> float:
    """Fails a test that asks for jitter where none is due."""
    raise AssertionError("jitter was asked for")


@pytest.mark.requirement("R-F232-1")
@pytest.mark.parametrize("max_retries", [0, 1, 3, 10])
def test_calls_are_retries_plus_one(max_retries: int) -> None:
    """The policy allows a retry after attempts 1 to max_retries, and none after the next."""
    backoff = Backoff.fixed(max_retries, 0.5)
    allowed = [backoff.delay_seconds(n, no_chance) is not None for n in range(1, max_retries + 3)]
    assert allowed == [True] * max_retries + [False, False]
    assert backoff.max_attempts == max_retries + 1


@pytest.mark.requirement("R-F232-2")
@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        (Backoff(), []),
        (Backoff.fixed(3, 0.5), [0.5, 0.5, 0.5]),
        (Backoff.fixed(2, 0), [0, 0]),
        (Backoff(5, 1, multiplier=2, cap_seconds=6), [1, 2, 4, 6, 6]),
        (Backoff(4, 0.25, multiplier=3, cap_seconds=60), [0.25, 0.75, 2.25, 6.75]),
        (Backoff(3, 2, multiplier=2, cap_seconds=2), [2, 2, 2]),
        (Backoff(3, 0, multiplier=2, cap_seconds=9), [0, 0, 0]),
    ],
    ids=["none", "fixed", "at-once", "capped", "exponential", "cap-first", "zero"],
)
def test_delays(backoff: Backoff, delays: list[float]) -> None:
    """The delay after each attempt, then None."""
    found = [backoff.delay_seconds(n, no_chance) for n in range(1, len(delays) + 2)]
    assert found == [*delays, None]


@pytest.mark.requirement("R-F232-2")
def test_delay_has_no_memory() -> None:
    """Two elements that take turns get the delays that each would get alone, in any order."""
    backoff = Backoff(6, 0.1, multiplier=2, cap_seconds=2)
    alone = [backoff.delay_seconds(n, no_chance) for n in range(1, 7)]
    turns = [(e, n) for n in range(1, 7) for e in (0, 1)] + [(2, 6), (2, 1)]
    random.Random(5).shuffle(turns)
    for _, n in turns:
        assert backoff.delay_seconds(n, no_chance) == alone[n - 1]


@pytest.mark.requirement("R-F232-2")
@given(
    first=st.floats(1e-3, 10),
    multiplier=st.floats(1, 10),
    extra=st.floats(0, 1e6),
    attempt=st.integers(1, 10**9),
)
def test_delay_is_the_capped_power(
    first: float, multiplier: float, extra: float, attempt: int
) -> None:
    """min(first * multiplier ** (n - 1), cap), for any n without overflow, against fractions."""
    cap = first + extra
    backoff = Backoff(10**9, first, multiplier=multiplier, cap_seconds=cap)
    found = backoff.delay_seconds(attempt, no_chance)
    expected = Fraction(first)
    for _ in range(min(attempt - 1, 20_000)):
        if expected >= cap or multiplier == 1:
            break
        expected = Fraction(float(expected * Fraction(multiplier)))
    if attempt - 1 <= 20_000 or expected >= cap:
        assert found == pytest.approx(min(float(expected), cap), rel=1e-9)
    assert found is not None
    assert found <= cap


@pytest.mark.requirement("R-F232-2")
def test_jitter_comes_from_outside_and_only_shortens() -> None:
    """A share of the delay is left to the injected source; the cap stays the longest delay."""
    backoff = Backoff(3, 4, multiplier=2, cap_seconds=8, jitter=0.5)
    fractions = iter([0.0, 0.5, 0.999])
    found = [backoff.delay_seconds(n, lambda: next(fractions)) for n in (1, 2, 3)]
    assert found == [4, 6, pytest.approx(4.004)]


@pytest.mark.requirement("R-F232-3")
def test_without_a_predicate_nothing_is_tried_again() -> None:
    """Retries without a predicate, and predicates without retries, are both no retry."""
    always = RetryPolicy(Backoff.fixed(5, 1))
    assert not always.active
    assert not always.wants_retry_of_result(None)
    assert not always.wants_retry_of_exception(OSError())
    assert not RetryPolicy(on_result=lambda _: True, on_exception=raised(OSError)).active
    assert not NO_RETRY.active


def test_predicates() -> None:
    """A result is judged by one, an exception by the other."""
    policy = RetryPolicy(
        Backoff.fixed(1, 1), on_result=lambda r: r is None, on_exception=raised(OSError, KeyError)
    )
    assert policy.active
    assert policy.wants_retry_of_result(None)
    assert not policy.wants_retry_of_result(0)
    assert policy.wants_retry_of_exception(TimeoutError())
    assert policy.wants_retry_of_exception(KeyError("x"))
    assert not policy.wants_retry_of_exception(ValueError())


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"max_retries": -1}, "max_retries"),
        ({"max_retries": 1.0}, "max_retries"),
        ({"max_retries": True}, "max_retries"),
        ({"first_delay_seconds": -0.1}, "first_delay_seconds"),
        ({"first_delay_seconds": float("nan")}, "first_delay_seconds"),
        ({"first_delay_seconds": 61}, "cap_seconds"),
        ({"multiplier": 0.5}, "multiplier"),
        ({"multiplier": float("inf")}, "multiplier"),
        ({"cap_seconds": "1"}, "cap_seconds"),
        ({"jitter": 1.1}, "jitter"),
        ({"jitter": -0.1}, "jitter"),
    ],
)
def test_values_out_of_range_are_refused_by_name(arguments: dict[str, float], name: str) -> None:
    """Negative, fractional, infinite and mistyped limits."""
    with pytest.raises(InvalidInputError, match=name):
        Backoff(**arguments)


def test_attempt_zero_is_a_mistake() -> None:
    """Attempts count from 1."""
    with pytest.raises(InvalidInputError, match="count from 1"):
        Backoff.fixed(1, 1).delay_seconds(0, no_chance)
