"""Declares what does not count in an identity.

Everything counts unless it is proven harmless. A list that leaves something out is a tuple of
`Excluded` at the top level of a module in this folder. A test finds all such tuples and requires
one case per entry, which changes that entry and shows equal rows
(tests/unit/jobs/test_exclusions.py).
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Excluded:
    """A thing that may differ between two runs and does not change a row."""

    name: str
    """A name, or a pattern of names; the list says which."""
    why: str
    """Why no row can depend on it."""


def names(entries: Iterable[Excluded]) -> frozenset[str]:
    """Return the names of a list of exclusions."""
    return frozenset(entry.name for entry in entries)
