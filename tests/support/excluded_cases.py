"""Cases that prove exclusions: what is left out of an identity changes no row."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pytest

from durable_shuffle.jobs.identity.exclusions import Excluded

Case = TypeVar("Case")


def every(entries: Sequence[Excluded], cases: Mapping[str, Case]) -> list[object]:
    """Return one parameter (name, case) per entry of a list of exclusions.

    Use it as `@pytest.mark.parametrize(("name", "case"), every(LIST, {...}))` in a test that
    changes what is excluded and compares rows. `LIST` must be the list's own name, because
    test_exclusions.py looks for it in the tests' source.

    Raises:
        AssertionError: an entry has no case, or a case has no entry.
    """
    assert {entry.name for entry in entries} == cases.keys(), "one case per exclusion"
    return [pytest.param(name, case, id=name) for name, case in cases.items()]
