"""A stream of a pipeline: what a user consumes, passes on or merges. The plan is the pipeline's."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from durable_shuffle.recovery.pipeline.plan.plan import StartAt
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink, Sink
from durable_shuffle.serialization.errors import InvalidInputError

if TYPE_CHECKING:
    from durable_shuffle.recovery.pipeline.pipeline import Pipeline


class Stream:
    """The rows of a source, or of a consumer that passes rows on."""

    def __init__(self, pipeline: "Pipeline", name: str) -> None:
        self._pipeline, self.name = pipeline, name

    def consume(
        self,
        name: str,
        step: Any,
        *,
        schema: pa.Schema | None = None,
        sink: Sink | None = None,
        version: str = "",
        start: StartAt = "earliest",
        on_error: Literal["fail", "skip"] = "fail",
        dead_letters: Sink | None = None,
    ) -> None:
        """Add a consumer: one task per partition.

        Args:
            step: a function from a record batch to rows, or an object with `process(batch)` and
                optionally `finish()`, `snapshot()`, `restore(state)`, the hooks
                `prepare_to_shutdown(token)` and `shutdown(token)`, and others; see
                docs/internals/pipelines.md. Every attempt gets its own copy.
            schema: of the rows that the step returns; None if it returns none.
            sink: where these rows go.
            version: as for `Pipeline.source`.
            start: where a new consumer begins: "earliest" is the first record that exists, "latest"
                is the first record after its start. All its tasks begin at the same moment.
            on_error: "skip" passes over rows at which the step fails. They go to `dead_letters`,
                with the error in a column `_error`. The step may be called again with rows of the
                same batch; one with a state is given it back first, by `restore`. Errors that may
                pass (OSError, TimeoutError, or an attribute `retry = True`) restart the task.
            dead_letters: the sink of these rows. The columns are those of the stream.

        Raises:
            InvalidInputError: the name is taken, or the arguments do not fit together.
        """
        if on_error not in ("fail", "skip"):
            raise InvalidInputError(f"on_error is 'fail' or 'skip', found={on_error!r}")
        if (on_error == "skip") is not (dead_letters is not None):
            raise InvalidInputError(
                f"consumer {name!r}: on_error='skip' and dead_letters, the sink of the rows that "
                "are passed over, belong together"
            )
        if dead_letters is not None and hasattr(step, "poll"):
            raise InvalidInputError(
                f"consumer {name!r} cannot pass rows over: its step does not take one row at a "
                "time; catch the error in its function"
            )
        urls = [s.url.rstrip("/") for s in (sink, dead_letters) if isinstance(s, FileSink)]
        if len(set(urls)) < len(urls):
            raise InvalidInputError(f"the dead letters of {name!r} need another folder")
        self._pipeline._consume(  # noqa: SLF001
            self.name, name, step, schema, sink, None, version, start, dead_letters
        )

    def through(
        self,
        name: str,
        step: Any,
        *,
        schema: pa.Schema,
        key: str | Sequence[str] = (),
        partitions: int = 1,
        version: str = "",
        start: StartAt = "earliest",
        readers: Sequence[str] = (),
    ) -> "Stream":
        """Add a consumer whose rows form a new stream. Arguments as for `consume` and `source`."""
        pipeline = self._pipeline
        pipeline._check_not_merged(self.name)  # noqa: SLF001
        producers = pipeline.plan.stages[self.name].partitions
        pipeline._consume(self.name, name, step, schema, None, f"{name}.out", version, start)  # noqa: SLF001
        pipeline._add_stage(f"{name}.out", schema, key, producers, partitions, readers)  # noqa: SLF001
        return Stream(pipeline, f"{name}.out")

    def union(self, *others: "Stream", name: str) -> "Stream":
        """Merge this stream and others of the pipeline into one, which takes their place.

        Nobody can read them alone any more. A consumer of the union gets the rows of one task of a
        source in order; a checkpoint is complete once all of them have passed it, or have ended.

        Raises:
            InvalidInputError: the name is taken; a stream is read already; or columns, key or
                partitions differ.
        """
        pipeline = self._pipeline
        pipeline._union([self.name, *(other.name for other in others)], name)  # noqa: SLF001
        return Stream(pipeline, name)
