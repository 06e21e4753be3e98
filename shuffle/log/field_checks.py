"""Checks of single fields of control records, for the classes that hold them.

A record's class refuses a value that no writer writes: `RecordCodec` turns that into corruption and
names the object. So nobody behind it meets a time that is no date, or a number that no packed form
holds.
"""

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import is_id

_MOST_SECONDS = 2.5e11
"""A date in the year 9892; `datetime` ends with 9999."""


def check_id(what: str, found: str) -> None:
    """Refuse an id that cannot be part of a key.

    Raises:
        InvalidInputError: not 32 hexadecimal digits; `RecordCodec` names the record.
    """
    if not is_id(found):
        raise InvalidInputError(f"{what} must be 32 hexadecimal digits, found={found!r:.100}")


def check_seconds(what: str, found: float) -> None:
    """Refuse a time since 1970 that is no date.

    Raises:
        InvalidInputError: negative, too large or not a number.
    """
    if not 0 <= found < _MOST_SECONDS:
        raise InvalidInputError(f"{what} must be seconds since 1970, found={found}")


def check_below(what: str, found: int, most: int, least: int = 0) -> None:
    """Refuse a number that is not in [least, most).

    Raises:
        InvalidInputError: says what was expected.
    """
    if not least <= found < most:
        raise InvalidInputError(f"{what}: expected {least} to {most - 1}, found {found}")
