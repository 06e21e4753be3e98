"""What a run of a query came to."""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from durable_shuffle.jobs.stages.report import StageReport


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A query whose stages are stored."""

    frame: DataFrame
    reports: tuple[StageReport, ...]
    """Of the stages that were looked at, lower ones first."""
    native: tuple[str, ...]
    """Spark's own exchanges that stayed, with the reason."""
