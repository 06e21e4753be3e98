"""The parts of a consumer in the order in which rows pass them, and their optional calls.

Parts are opened from the tail to the head, so that no part gets rows before the next one can take
them, and closed from the head to the tail. Every part whose opening began is closed exactly once,
also if others fail; the first error counts, later ones are noted on it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from durable_shuffle.recovery.job.ends import OPTIONAL, EndStep
from durable_shuffle.serialization.errors import InvalidInputError


class Chain:
    """The parts of one attempt.

    Args:
        parts: head first; objects with any of the optional methods.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = tuple(parts)
        self._begun: list[Any] = []

    @property
    def hooks(self) -> frozenset[EndStep]:
        """The optional steps that some part offers."""
        return frozenset(step for step in OPTIONAL if self._offering(step))

    def open(self, call: Callable[[Any], None]) -> None:
        """Open every part with `call`, tail first; stops at the first error."""
        for part in reversed(self._parts):
            self._begun.append(part)
            call(part)

    def call(self, step: EndStep, *arguments: Any) -> None:
        """Call an optional step of all parts that offer it, head first.

        Raises:
            InvalidInputError: a part returned rows: nothing is emitted any more.
        """
        for part in self._offering(step):
            made = getattr(part, str(step))(*arguments)
            if made is not None:
                raise InvalidInputError(f"{type(part).__name__}.{step} must return nothing")

    def close(self, earlier: BaseException | None = None) -> BaseException | None:
        """Close what was opened, head first; return the first error, `earlier` before all."""
        begun, self._begun = self._begun, []
        for part in reversed(begun):
            close = getattr(part, "close", None)
            if close is None:
                continue
            try:
                close()
            except BaseException as error:  # noqa: BLE001 - the others must be closed, too
                if earlier is None:
                    earlier = error
                else:
                    earlier.add_note(f"closing {type(part).__name__} failed, too: {error!r}")
        return earlier

    def _offering(self, step: EndStep) -> list[Any]:
        return [part for part in self._parts if callable(getattr(part, str(step), None))]
