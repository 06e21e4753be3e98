"""A user's consumer function or object as a step of the consume loop. Runs in workers.

Whatever the user's code raises comes out as `UserCodeError`, so that it is never taken for an error
of this library.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from durable_shuffle.jobs.python_stage.contracts import checked_batches
from durable_shuffle.serialization.arrow_codec import under_schema
from durable_shuffle.serialization.decimals import logical_batch, logical_schema
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.log.stage import StageHandle

_STATEFUL = ("process", "snapshot", "restore")


class UserCodeError(Exception):
    """Carries what the user's code raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def is_stateful(process: Any) -> bool:
    """Return True for an object with process, snapshot and restore, False for a function.

    Raises:
        InvalidInputError: neither; names what is missing.
    """
    missing = [name for name in _STATEFUL if not callable(getattr(process, name, None))]
    if not missing:
        return True
    if callable(process):
        return False
    raise InvalidInputError(
        "process must be a function of a RecordBatch, or an object with process, snapshot and "
        f"restore: {type(process).__name__} has no {', '.join(missing)}"
    )


@dataclass(slots=True)
class UserStep:
    """Implements the loop's `Step`."""

    stage: StageHandle
    user: Any
    """A function, or an object that `is_stateful`; this one's own."""
    schema: pa.Schema | None
    """Of what it yields, storable."""

    def process(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        plain = logical_batch(batch, self.stage.schema)
        rows = under_schema(plain, self._input())
        call = self.user.process if is_stateful(self.user) else self.user
        with _of_the_user():
            produced = call(rows)
        return self._checked(produced)

    def finish(self) -> Iterator[pa.RecordBatch]:
        if not is_stateful(self.user) or not hasattr(self.user, "finish"):
            return iter(())
        with _of_the_user():
            produced = self.user.finish()
        return self._checked(produced)

    def snapshot(self) -> bytes | None:
        if not is_stateful(self.user):
            return None
        with _of_the_user():
            state = self.user.snapshot()
        if not isinstance(state, bytes):
            raise InvalidInputError(f"snapshot must return bytes, found {type(state).__name__}")
        return state

    def restore(self, state: bytes | None) -> None:
        if (state is not None) != is_stateful(self.user):
            was = "a function" if state is None else "an object with a state"
            raise IncompatibleError(
                f"this consumer was run with {was} before, and acknowledged records: give another "
                "consumer name"
            )
        if state is not None:
            with _of_the_user():
                self.user.restore(state)

    def close(self) -> None:
        """End this attempt."""
        if is_stateful(self.user) and hasattr(self.user, "close"):
            with _of_the_user():
                self.user.close()

    def _input(self) -> pa.Schema:
        names = self.stage.describe.columns
        logical = logical_schema(self.stage.schema)
        return pa.schema([f.with_name(n) for f, n in zip(logical, names, strict=True)])

    def _checked(self, produced: Any) -> Iterator[pa.RecordBatch]:
        if produced is None:
            return
        if isinstance(produced, Iterable) and not isinstance(produced, (pa.RecordBatch, pa.Table)):
            produced = _guarded(produced)
        if self.schema is not None:
            yield from checked_batches(produced, self.schema, "process")
            return
        for item in [produced] if isinstance(produced, (pa.RecordBatch, pa.Table)) else produced:
            raise InvalidInputError(
                f"process returned {type(item).__name__}, and consume() was given no schema for "
                "what it returns"
            )


def _guarded(produced: Iterable[Any]) -> Iterator[Any]:
    with _of_the_user():
        yield from produced


@contextmanager
def _of_the_user() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise UserCodeError(error) from error
