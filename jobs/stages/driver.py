"""One driver of a job, as its calls share it."""

from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.stages.report import ConsumerReport, Report, StageReport
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.release.unused import KeepUsed, Retention
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage


@dataclass(slots=True)
class Done:
    """What a driver did so far, in the order of the calls."""

    reports: list[StageReport] = field(default_factory=list)
    consumer_reports: list[ConsumerReport] = field(default_factory=list)
    native: list[str] = field(default_factory=list)
    """Exchanges that Spark ran itself, each reason once."""
    adapted: list[str] = field(default_factory=list)

    def left_to_spark(self, text: str) -> None:
        """Say what Spark ran itself, and why."""
        if text not in self.native:
            self.native.append(text)

    def report(self, job: str, generation: int) -> Report:
        """Return all of it."""
        stages, consumers = tuple(self.reports), tuple(self.consumer_reports)
        return Report(job, generation, stages, consumers, tuple(self.native), tuple(self.adapted))


@dataclass(frozen=True, slots=True)
class Driver:
    """What all calls of one `DurableShuffle` share."""

    spark: SparkSession
    job: str
    log: JobLog
    storage: CountingStorage
    shared_storage: Storage
    """The same storage, without counts: for what runs beside the calls."""
    engine: Engine
    runner: StageRunner
    at_risk_seconds: float
    """The default of `query`."""
    retention: Retention
    keep: KeepUsed | None
    """What the retention keeps; None for everything."""
    clock: Clock
    ids: IdSource
    settings: Settings
    done: Done = field(default_factory=Done)
