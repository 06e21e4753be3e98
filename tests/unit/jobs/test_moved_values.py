"""Which captured values differ from those of a stored stage, as its description lists them."""

import pytest

from durable_shuffle.jobs.stages.identity import CAPTURED, captured_text, moved_values

WANTED = {"plan": "p", CAPTURED: captured_text({"rate": "1" * 32, "day": "2" * 32}, ("code",))}


def test_values_that_moved_are_named() -> None:
    stored = captured_text({"rate": "1" * 32, "day": "3" * 32}, ("code",))
    assert moved_values(WANTED, WANTED | {CAPTURED: stored}) == ("day",)
    code = captured_text({"rate": "1" * 32, "day": "3" * 32}, ("other",))
    assert moved_values(WANTED, WANTED | {CAPTURED: code}) == ()


@pytest.mark.parametrize(
    "stored", ["", "no json", "[]", "null", "7", '"text"', "{}", "[" * 200_000, "1" * 5000]
)
def test_a_stored_list_that_is_none_tells_nothing(stored: str) -> None:
    """Whatever a description says there: it only serves a hint."""
    assert moved_values(WANTED, WANTED | {CAPTURED: stored}) == ()
