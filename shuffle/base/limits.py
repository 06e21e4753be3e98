"""Checks of numbers that callers pass: one wording, and each message names the value."""

import math

from durable_shuffle.serialization.errors import InvalidInputError


def check_number(
    name: str, value: object, *, at_least: float, at_most: float = math.inf, above: bool = False
) -> None:
    """Refuse a value that is not a finite number in [at_least, at_most].

    A bool is no number.

    Args:
        name: for the message.
        above: whether `at_least` itself is refused too.

    Raises:
        InvalidInputError: the message names the value.
    """
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if good and isinstance(value, int | float):
        good = (value > at_least if above else value >= at_least) and value <= at_most
    if not good:
        bound = f"above {at_least}" if above else f"of at least {at_least}"
        limit = "" if at_most == math.inf else f" and at most {at_most}"
        raise InvalidInputError(f"{name} must be a finite number {bound}{limit}, found={value!r}")


def check_count(name: str, value: object, *, at_least: int) -> None:
    """Refuse a value that is not an integer of at least `at_least`. A bool is no integer.

    Raises:
        InvalidInputError: the message names the value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidInputError(
            f"{name} must be an integer of at least {at_least}, found={value!r}"
        )
