"""The users' interface to pipelines: sources, streams, consumers, sinks; run, stop, run again.

    pipeline = Pipeline("clicks", "./data")
    clicks = pipeline.source("clicks", IteratorSource(read), schema=SCHEMA, key="user")
    clicks.consume("count", Counter(), schema=COUNTS, sink=FileSink("./counts"))
    result = pipeline.run()

A later run of a pipeline with the same name continues where the last one stopped.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import JobResult
from durable_shuffle.recovery.pipeline.commands.requests import Description
from durable_shuffle.recovery.pipeline.coordinator.numbers import Tell
from durable_shuffle.recovery.pipeline.coordinator.standby import stand_by
from durable_shuffle.recovery.pipeline.coordinator.supervisor import Supervisor
from durable_shuffle.recovery.pipeline.lines.launcher import MakeLauncher
from durable_shuffle.recovery.pipeline.lines.processes import check_no_child, local_processes
from durable_shuffle.recovery.pipeline.plan.plan import (
    ConsumerPlan,
    PipelinePlan,
    SourcePlan,
    StagePlan,
    StartAt,
)
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink, Sink
from durable_shuffle.recovery.pipeline.plan.sources import Source, StageSource
from durable_shuffle.recovery.pipeline.plan.union import merge
from durable_shuffle.recovery.pipeline.plan.updates import package_of
from durable_shuffle.recovery.pipeline.running import RunningPipeline, sigterm_as_interrupt
from durable_shuffle.recovery.pipeline.stream import Stream
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
from durable_shuffle.shuffle.rows.reducers import lacks_of_state
from durable_shuffle.shuffle.storage.open import open_storage

_log = logging.getLogger(__name__)


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
        readers: Sequence[str] = (),
    ) -> Stream:
        """Add a source and the stage that it writes.

        Args:
            schema: of its rows. Not for a `StageSource`, which has its own schema and partitions.
            key: columns; rows with equal keys go to one partition. Without a key, rows go in turn.
            producers: how many tasks read the source; each reads its share.
            partitions: how many tasks each consumer of this stream has.
            version: change it to tell an update that the source has changed, if its code and values
                do not show it.
            readers: names of consumers outside this pipeline, such as the `consumer` of a streaming
                query, that rows are kept for until they have committed them, too.

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
        self._add_stage(name, schema, key, producers, partitions, readers)
        self._sources[name] = SourcePlan(name, source, version, producers)
        return Stream(self, name)

    def run(
        self,
        *,
        launcher: MakeLauncher = local_processes,
        given: Description | None = None,
        serve: bool = False,
        standby: bool = False,
        updates_from: Collection[str] = (),
        on_numbers: Tell | None = None,
    ) -> JobResult:
        """Run until the pipeline ends; return how it ended, even if it failed.

        Ctrl-C suspends the pipeline, a second one cancels it. SIGTERM suspends it, too, if this is
        the main thread and the program has no handler for it. Arguments as for `start`.
        """
        running = self.start(
            launcher=launcher,
            given=given,
            serve=serve,
            standby=standby,
            updates_from=updates_from,
            on_numbers=on_numbers,
        )
        with sigterm_as_interrupt():
            for mode in (StopMode.SUSPEND, StopMode.CANCEL):
                try:
                    return running.wait()
                except KeyboardInterrupt:
                    with suppress(InvalidInputError):  # it stops already, or has ended
                        running.stop(mode)
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
        standby: bool = False,
        updates_from: Collection[str] = (),
        on_numbers: Tell | None = None,
    ) -> RunningPipeline:
        """Start running, supervised by a thread of this process.

        Args:
            given: how another process can make this pipeline again, if it can.
            serve: keep running while the pipeline is suspended from outside, so that it can be
                resumed.
            standby: if another coordinator leads, wait until it has ended or has given no sign of
                life for `takeover_seconds`, and start then. Without it, the newer one takes over.
            updates_from: names of packages or single modules. An update may name a function that is
                marked by `pipeline_factory` in these or in the package of `given`. Anybody who can
                write to the storage can have these functions called.
            on_numbers: called with `PipelineNumbers` every `status_seconds`, in a thread of its
                own, for monitoring. Calls are left out while one lasts.

        Raises:
            InvalidInputError: the pipeline has nothing to run; or the program has no guard
                `if __name__ == "__main__":`, and one of its processes imports it.
        """
        check_no_child()
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
            on_numbers=on_numbers,
        )
        return RunningPipeline(supervisor, self._stand_by if standby else None)

    def _stand_by(self, pause: Callable[[float], bool]) -> JobResult | None:
        return stand_by(
            open_storage(self._url, self._options),
            self.name,
            patience_seconds=self._settings.takeover_seconds,
            clock=SystemClock(),
            pause=pause,
        )

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
        if name in self._stages or name in self._consumers or name in self._sources:
            raise InvalidInputError(f"pipeline {self.name!r} has a {name!r} already")

    def _add_stage(
        self,
        name: str,
        schema: pa.Schema,
        key: str | Sequence[str],
        producers: int,
        partitions: int,
        readers: Sequence[str],
    ) -> None:
        check_count("producers", producers, at_least=1)
        check_count("partitions", partitions, at_least=1)
        keys = (key,) if isinstance(key, str) else tuple(key)
        missing = [key_column for key_column in keys if key_column not in schema.names]
        if missing:
            raise InvalidInputError(f"stream {name!r} has no column {missing[0]!r} for its key")
        named = tuple(check_name("consumer", reader) for reader in readers)
        plain = storable_schema(schema)
        self._stages[name] = StagePlan(name, plain, keys, producers, partitions, readers=named)

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
        dead_letters: Sink | None = None,
    ) -> None:
        self._take_name(name)
        self._check_not_merged(reads)
        lacks = lacks_of_state(step)
        if "process" in lacks and not callable(step):
            raise InvalidInputError(
                f"consumer {name!r} must be a function or an object with process(batch), found "
                f"{type(step).__name__}"
            )
        stateless = getattr(step, "stateless", False) is True
        if lacks and "process" not in lacks and not stateless:
            raise InvalidInputError(
                f"consumer {name!r}: {type(step).__name__} has process() and no "
                f"{'(), '.join(lacks)}(): a restart would lose its state; add these methods, or "
                "set stateless = True on it"
            )
        if schema is None and sink is not None:
            raise InvalidInputError(f"consumer {name!r} needs the schema of the rows for its sink")
        if schema is not None and sink is None and writes is None:
            raise InvalidInputError(f"consumer {name!r} makes rows and has no sink for them")
        if start not in ("earliest", "latest"):
            raise InvalidInputError(f"start is 'earliest' or 'latest', found={start!r}")
        self._warn_of_one_folder(name, sink)
        plain = None if schema is None else storable_schema(schema)
        self._consumers[name] = ConsumerPlan(
            name, reads, step, plain, sink, writes, version, start, dead_letters=dead_letters
        )

    def _check_not_merged(self, stage: str) -> None:
        if stage not in self._stages:
            raise InvalidInputError(
                f"stream {stage!r} is part of a union: only the union can be read"
            )

    def _union(self, streams: Sequence[str], name: str) -> None:
        self._take_name(name)
        for stream in streams:
            self._check_not_merged(stream)
        merged = merge(self.plan, streams, name)
        self._stages = dict(merged.stages)
        self._sources, self._consumers = dict(merged.sources), dict(merged.consumers)

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
