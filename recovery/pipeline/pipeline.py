"""The users' interface to pipelines: sources, streams, consumers, sinks; run, stop, run again.

    pipeline = Pipeline("clicks", "./data")
    clicks = pipeline.source("clicks", IteratorSource(read), schema=SCHEMA, key="user")
    clicks.consume("count", Counter(), schema=COUNTS, sink=FileSink("./counts"))
    result = pipeline.run()

A later run of a pipeline with the same name continues where the last one stopped.
"""

import logging
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import JobPhase, JobResult
from durable_shuffle.recovery.pipeline.commands.requests import Description
from durable_shuffle.recovery.pipeline.coordinator.supervisor import Supervisor
from durable_shuffle.recovery.pipeline.lines.launcher import Hear, Launcher, MakeLauncher
from durable_shuffle.recovery.pipeline.lines.processes import LocalProcesses
from durable_shuffle.recovery.pipeline.plan.plan import (
    ConsumerPlan,
    PipelinePlan,
    PipelineSettings,
    SourcePlan,
    StagePlan,
    StartAt,
)
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink, Sink
from durable_shuffle.recovery.pipeline.plan.sources import Source, StageSource
from durable_shuffle.recovery.pipeline.plan.updates import package_of
from durable_shuffle.recovery.pipeline.task.run_task import RunTask
from durable_shuffle.serialization.arrow_schemas import storable_schema
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import (
    Clock,
    IdSource,
    RandomIds,
    SystemClock,
    system_jitter,
)
from durable_shuffle.shuffle.base.redact import redact
from durable_shuffle.shuffle.base.retry import Jitter
from durable_shuffle.shuffle.base.settings import check_count
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.log.named_stage import named_stage

_log = logging.getLogger(__name__)
_TURN_SECONDS = 0.5
"""How late a Ctrl-C may be noticed."""


def local_processes(run_task: RunTask, settings: PipelineSettings, hear: Hear) -> Launcher:
    """Return the default launcher: a process of this machine per task."""
    return LocalProcesses(
        run_task,
        hear,
        heartbeat_seconds=settings.heartbeat_seconds,
        silence_seconds=settings.silence_seconds,
    )


class Pipeline:
    """Sources and consumers that run side by side, connected only by durable subpartitions.

    Args:
        name: of the job on the storage. One supervisor at a time runs it; a newer one takes over.
        url: where the data between tasks is stored.
        storage_options: options of the fsspec driver.
        version: a name for people, shown to operators.

    Raises:
        InvalidInputError: the name is not valid.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        version: str = "",
        settings: PipelineSettings | None = None,
        storage_options: Mapping[str, object] | None = None,
    ) -> None:
        self.name = check_name("pipeline", name)
        self.version = version
        self._url, self._options = url, storage_options
        self._settings = settings or PipelineSettings()
        self._stages: dict[str, StagePlan] = {}
        self._sources: dict[str, SourcePlan] = {}
        self._consumers: dict[str, ConsumerPlan] = {}

    def source(
        self,
        name: str,
        source: Source | StageSource,
        *,
        schema: pa.Schema | None = None,
        key: str | Sequence[str] = (),
        producers: int = 1,
        partitions: int = 1,
        version: str = "",
    ) -> "Stream":
        """Add a source and the stage that it writes.

        Args:
            schema: of its rows. Not for a `StageSource`, which has its own schema and partitions.
            key: columns; rows with equal keys go to one partition. Without a key, rows go in turn.
            producers: how many tasks read the source; each reads its share.
            partitions: how many tasks each consumer of this stream has.
            version: change it to tell an update that the source has changed, if its code and values
                do not show it.

        Raises:
            InvalidInputError: the name is taken, or the arguments do not fit together.
        """
        self._take_name(name)
        if isinstance(source, StageSource):
            if schema is not None or key or (producers, partitions) != (1, 1):
                raise InvalidInputError(f"stage {source.stage!r} has a schema, keys and partitions")
            describe = named_stage(
                source.url or self._url, source.job, source.stage, storage_options=self._options
            ).describe
            count = describe.partitions
            self._stages[name] = StagePlan(name, None, (), describe.producers, count, source)
            return Stream(self, name)
        if schema is None:
            raise InvalidInputError(f"source {name!r} needs the schema of its rows")
        self._add_stage(name, schema, key, producers, partitions)
        self._sources[name] = SourcePlan(name, source, version)
        return Stream(self, name)

    def run(
        self,
        *,
        launcher: MakeLauncher = local_processes,
        given: Description | None = None,
        serve: bool = False,
        updates_from: Collection[str] = (),
    ) -> JobResult:
        """Run until the pipeline ends; return how it ended, even if it failed.

        A KeyboardInterrupt suspends the pipeline. Arguments as for `start`.
        """
        running = self.start(launcher=launcher, given=given, serve=serve, updates_from=updates_from)
        try:
            return running.wait()
        except KeyboardInterrupt:
            running.stop(StopMode.SUSPEND)
            return running.wait()

    def start(
        self,
        *,
        launcher: MakeLauncher = local_processes,
        clock: Clock | None = None,
        ids: IdSource | None = None,
        jitter: Jitter | None = None,
        given: Description | None = None,
        serve: bool = False,
        updates_from: Collection[str] = (),
    ) -> "RunningPipeline":
        """Start running, supervised by a thread of this process.

        Args:
            given: how another process can make this pipeline again, if it can.
            serve: keep running while the pipeline is suspended from outside, so that it can be
                resumed.
            updates_from: names of packages or single modules. An update may name a function that is
                marked by `pipeline_factory` in these or in the package of `given`. Anybody who can
                write to the storage can have these functions called.

        Raises:
            InvalidInputError: the pipeline has nothing to run.
        """
        plan = self.plan
        if not plan.tasks:
            raise InvalidInputError(f"pipeline {self.name!r} has no source and no consumer")

        given = Description("", "", self.version) if given is None else given
        supervisor = Supervisor(
            plan,
            launcher,
            given=given,
            packages=frozenset({package_of(given.factory), *updates_from} - {""}),
            serve=serve,
            clock=clock or SystemClock(),
            ids=ids or RandomIds(),
            jitter=jitter or system_jitter(),
        )
        return RunningPipeline(supervisor)

    @property
    def plan(self) -> PipelinePlan:
        """The plan of everything that was added so far."""
        return PipelinePlan(
            self.name,
            self._url,
            self._options,
            self._settings,
            dict(self._stages),
            dict(self._sources),
            dict(self._consumers),
            self.version,
        )

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {redact(self._url, self._options or {})!r})"

    def _take_name(self, name: str) -> None:
        check_name("source or consumer", name)
        if name in self._stages or name in self._consumers:
            raise InvalidInputError(f"pipeline {self.name!r} has a {name!r} already")

    def _add_stage(
        self,
        name: str,
        schema: pa.Schema,
        key: str | Sequence[str],
        producers: int,
        partitions: int,
    ) -> None:
        check_count("producers", producers, at_least=1)
        check_count("partitions", partitions, at_least=1)
        keys = (key,) if isinstance(key, str) else tuple(key)
        missing = [key_column for key_column in keys if key_column not in schema.names]
        if missing:
            raise InvalidInputError(f"stream {name!r} has no column {missing[0]!r} for its key")
        self._stages[name] = StagePlan(name, storable_schema(schema), keys, producers, partitions)

    def _consume(
        self,
        reads: str,
        name: str,
        step: Any,
        schema: pa.Schema | None,
        sink: Sink | None,
        writes: str | None,
        version: str,
        start: StartAt,
    ) -> None:
        self._take_name(name)
        if not callable(step) and not callable(getattr(step, "process", None)):
            raise InvalidInputError(
                f"consumer {name!r} must be a function or an object with process(batch), found "
                f"{type(step).__name__}"
            )
        if schema is None and sink is not None:
            raise InvalidInputError(f"consumer {name!r} needs the schema of the rows for its sink")
        if schema is not None and sink is None and writes is None:
            raise InvalidInputError(f"consumer {name!r} makes rows and has no sink for them")
        if start not in ("earliest", "latest"):
            raise InvalidInputError(f"start is 'earliest' or 'latest', found={start!r}")
        self._warn_of_one_folder(name, sink)
        plain = None if schema is None else storable_schema(schema)
        self._consumers[name] = ConsumerPlan(name, reads, step, plain, sink, writes, version, start)

    def _warn_of_one_folder(self, name: str, sink: Sink | None) -> None:
        for other in self._consumers.values():
            if not isinstance(sink, FileSink) or not isinstance(other.sink, FileSink):
                continue
            if sink.url.rstrip("/") == other.sink.url.rstrip("/"):
                _log.warning(
                    "consumers %r and %r of pipeline %r publish into one folder, which a FileSink "
                    "should have for itself: its readers get the rows of both",
                    other.name,
                    name,
                    self.name,
                )


class Stream:
    """The rows of a source, or of a consumer that passes rows on."""

    def __init__(self, pipeline: Pipeline, name: str) -> None:
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
    ) -> None:
        """Add a consumer: one task per partition.

        Args:
            step: a function from a record batch to rows, or an object with `process(batch)` and
                optionally `finish()`, `snapshot()`, `restore(state)`, the hooks
                `prepare_to_shutdown(token)` and `shutdown(token)`, and others; see
                docs/pipelines.md. Every attempt gets its own copy.
            schema: of the rows that the step returns; None if it returns none.
            sink: where these rows go.
            version: as for `Pipeline.source`.
            start: where a new consumer begins: "earliest" is the first record that exists, "latest"
                is the first record after its start. All its tasks begin at the same moment.

        Raises:
            InvalidInputError: the name is taken, or the arguments do not fit together.
        """
        self._pipeline._consume(self.name, name, step, schema, sink, None, version, start)  # noqa: SLF001

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
    ) -> "Stream":
        """Add a consumer whose rows form a new stream. Arguments as for `consume` and `source`."""
        pipeline = self._pipeline
        producers = pipeline.plan.stages[self.name].partitions
        pipeline._consume(self.name, name, step, schema, None, f"{name}.out", version, start)  # noqa: SLF001
        pipeline._add_stage(f"{name}.out", schema, key, producers, partitions)  # noqa: SLF001
        return Stream(pipeline, f"{name}.out")


class RunningPipeline:
    """A run in progress."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor, self._clock = supervisor, SystemClock()
        self._result: JobResult | None = None
        self._error: BaseException | None = None
        # not `join`: in Python 3.11, a Ctrl-C during `join` marks the thread as ended
        self._over = threading.Event()
        threading.Thread(target=self._run, name="durable-shuffle-supervisor", daemon=True).start()

    @property
    def phase(self) -> JobPhase:
        """The current phase."""
        return self._supervisor.machine.phase

    @property
    def ended(self) -> bool:
        """Whether `wait` returns at once."""
        return self._over.is_set()

    @property
    def launcher(self) -> Launcher | None:
        """The launcher of the tasks; None before the first start."""
        return self._supervisor.launcher

    def stop(self, mode: StopMode | str) -> None:
        """Ask the pipeline to end: "DRAIN", "SUSPEND" or "CANCEL". `wait` then returns the result.

        Raises:
            InvalidInputError: another stop came first and this is not a CANCEL, or the run has
                ended.
        """
        try:
            wanted = StopMode(mode)
        except ValueError:
            raise InvalidInputError(f"a stop is DRAIN, SUSPEND or CANCEL, found={mode!r}") from None
        self._supervisor.ask_stop(wanted)

    def wait(self, timeout_seconds: float | None = None) -> JobResult:
        """Wait for the end; return how the run ended.

        Raises:
            TimeoutError: the run has not ended in time.
        """
        deadline = None if timeout_seconds is None else self._clock.monotonic() + timeout_seconds
        # in turns: a Ctrl-C that comes just before a wait, or to another thread, is noticed only
        # behind it
        while not self._over.is_set():
            left = math.inf if deadline is None else deadline - self._clock.monotonic()
            if left <= 0:
                break
            self._over.wait(min(left, _TURN_SECONDS))
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise TimeoutError(f"the pipeline is {self.phase} after {timeout_seconds} s")
        return self._result

    def progress(self) -> dict[str, tuple[str, int]]:
        """Return the phase and the number of processed records that each task reported last."""
        tasks = self._supervisor.machine.tasks
        return {name: (str(state.phase), state.records) for name, state in tasks.items()}

    def _run(self) -> None:
        try:
            self._result = self._supervisor.run()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error
        finally:
            self._over.set()
