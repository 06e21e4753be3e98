"""What the models share: a log is a tuple of records, a slot is its index.

A create that aims at a taken slot is refused; one that aims beyond the end is a gap, which a
correct protocol never sends.
"""

from typing import TypeVar

T = TypeVar("T")


def put_if_absent(log: tuple[T, ...], slot: int, record: T) -> tuple[tuple[T, ...], bool]:
    """Return the log after a create of `slot` landed, and whether the create won."""
    if slot == len(log):
        return (*log, record), True
    return log, False


def record_in(log: tuple[T, ...], slot: int) -> T | None:
    """Return the record that holds `slot`, or None if it is still free."""
    return log[slot] if slot < len(log) else None


def with_item(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """Return `items` with the one at `index` exchanged."""
    return (*items[:index], item, *items[index + 1 :])
