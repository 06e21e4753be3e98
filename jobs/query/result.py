"""The result of a query run."""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from durable_shuffle.jobs.stages.report import StageReport


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A query whose stages are stored."""

    frame: DataFrame
    reports: tuple[StageReport, ...]
    """One report per needed cut, lower cuts first."""
    native: tuple[str, ...]
    """Exchanges that Spark runs itself, each with the reason."""
