"""Make the next `DurableShuffle` of this process a driver of its own, as in another process."""

from collections.abc import Mapping
from typing import Any

from durable_shuffle.jobs import claims


def forget_claims() -> Mapping[Any, Any]:
    """Forget which jobs this process has claimed, and return them."""
    before = dict(claims._held)
    claims._held.clear()
    return before


def remember_claims(before: Mapping[Any, Any]) -> None:
    """Take back what `forget_claims` returned."""
    claims._held.update(before)
