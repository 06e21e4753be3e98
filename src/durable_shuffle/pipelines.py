"""Pipelines: sources, consumers that resume, sinks; and clients that operate a running one."""

from typing import TYPE_CHECKING

from durable_shuffle._names import resolver
from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.folder import FolderSource
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import CallbackSink, FileSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource, StageSource
from durable_shuffle.recovery.pipeline.plan.updates import pipeline_factory

if TYPE_CHECKING:
    from durable_shuffle.jobs.spark_tasks.launcher import spark_tasks

__all__ = [
    "CallbackSink",
    "FileSink",
    "FolderSource",
    "IteratorSource",
    "Pipeline",
    "PipelineClient",
    "PipelineSettings",
    "StageSource",
    "pipeline_factory",
    "spark_tasks",
]

__getattr__ = resolver(__name__, {"spark_tasks": "durable_shuffle.jobs.spark_tasks.launcher"})


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
