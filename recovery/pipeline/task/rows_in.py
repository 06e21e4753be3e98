"""Has a step take rows, and passes over rows that it cannot take, if that is wanted.

A batch in which the step fails, or of which it makes rows that the sink cannot hold, is split until
single rows are left. A step with a state gets it back each time, as `snapshot` gave it before the
batch, so no row counts twice. A row that fails alone goes to the dead letters, with the error.
Trouble that may pass is no reason to pass over a row: the attempt then fails, and the task starts
again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from durable_shuffle.recovery.pipeline.plan.rows import batches_of
from durable_shuffle.recovery.pipeline.task.commits import Commits
from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.shuffle.base.user_code import named_text_of, own_error, user_code


@dataclass(frozen=True, slots=True)
class RowsIn:
    """The rows of one attempt.

    Args:
        name: of the consumer, for messages.
        schema: the storable schema of the step's rows; None if it returns none.
        skips: whether rows may be passed over.
    """

    step: Any
    name: str
    schema: pa.Schema | None
    commits: Commits
    skips: bool

    def take(self, batch: pa.RecordBatch) -> None:
        """Have the step take a batch; what it returns goes into the next commit."""
        if not self.skips:
            self.emit(self._process(batch))
            return
        state = self.call("snapshot") if hasattr(self.step, "restore") else None
        try:
            made = list(self._fitting(self._process(batch)))
            self.commits.check(made)
        except Exception as error:
            if not is_of_the_row(error):
                raise
            if state is not None:
                self.call("restore", state)
            if batch.num_rows == 1:
                self.commits.add_letter(batch, named_text_of(error))
                return
            half = batch.num_rows // 2
            self.take(batch.slice(0, half))
            self.take(batch.slice(half))
            return
        for one in made:
            self.commits.add(one)

    def emit(self, made: Any) -> None:
        """Add what the step returned to the next commit.

        Raises:
            InvalidInputError: it does not fit the schema.
        """
        for batch in self._fitting(made):
            self.commits.add(batch)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method of the step; what it raises is a UserCodeError."""
        with user_code():
            return getattr(self.step, name)(*arguments)

    def _process(self, batch: pa.RecordBatch) -> Any:
        process: Callable[[pa.RecordBatch], Any] = getattr(self.step, "process", self.step)
        with user_code():
            return process(batch)

    def _fitting(self, made: Any) -> Iterator[pa.RecordBatch]:
        if self.schema is not None:
            yield from batches_of(made, self.schema, what=f"consumer {self.name!r}")
        elif made is not None and any(True for _ in made):
            raise InvalidInputError(
                f"consumer {self.name!r} has no schema for what it makes, and made rows"
            )


def is_of_the_row(error: Exception) -> bool:
    """Return whether an error of a step is taken for one of the row, and not for one that passes.

    Errors of the operating system and the network may pass, and so may those that say `retry`.
    """
    own = own_error(error)
    if isinstance(own, DurableShuffleError):
        return isinstance(own, InvalidInputError)
    return not isinstance(own, OSError | MemoryError) and getattr(own, "retry", None) is not True
