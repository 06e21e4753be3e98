"""Durable, resumable shuffle for PySpark.

`from durable_shuffle import DurableShuffle` is all most users need; `named_stage` and `open_view`
read a stored stage without Spark. The names are resolved at first use, so that importing this
package never imports pyspark.
"""

import importlib
from typing import TYPE_CHECKING, Any

from durable_shuffle.serialization.errors import DurableShuffleError, FencedError

if TYPE_CHECKING:
    from durable_shuffle.jobs.session import DurableShuffle
    from durable_shuffle.jobs.spark_tasks.launcher import spark_tasks
    from durable_shuffle.jobs.streaming.register import register
    from durable_shuffle.recovery.calls.batches import AsyncStep, async_map
    from durable_shuffle.recovery.calls.operator import AsyncOperator
    from durable_shuffle.recovery.pipeline.client import PipelineClient
    from durable_shuffle.recovery.pipeline.pipeline import Pipeline
    from durable_shuffle.recovery.pipeline.plan.folder import FolderSource
    from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
    from durable_shuffle.recovery.pipeline.plan.sinks import CallbackSink, FileSink
    from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource, StageSource
    from durable_shuffle.recovery.pipeline.plan.updates import pipeline_factory
    from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised
    from durable_shuffle.shuffle.base.settings import Settings
    from durable_shuffle.shuffle.consume.open_view import open_view
    from durable_shuffle.shuffle.consume.outputs import write_output
    from durable_shuffle.shuffle.log.named_stage import named_stage
    from durable_shuffle.shuffle.release.unused import KeepUsed
    from durable_shuffle.shuffle.rows.reducers import Grouped, ResumableReducer
    from durable_shuffle.shuffle.write.log_producer import LogProducer

__version__ = "0.1.0"
__all__ = [
    "AsyncOperator",
    "AsyncStep",
    "Backoff",
    "CallbackSink",
    "DurableShuffle",
    "DurableShuffleError",
    "FencedError",
    "FileSink",
    "FolderSource",
    "Grouped",
    "IteratorSource",
    "KeepUsed",
    "LogProducer",
    "Pipeline",
    "PipelineClient",
    "PipelineSettings",
    "ResumableReducer",
    "RetryPolicy",
    "Settings",
    "StageSource",
    "__version__",
    "async_map",
    "named_stage",
    "open_view",
    "pipeline_factory",
    "raised",
    "register",
    "spark_tasks",
    "write_output",
]

_MODULES = {
    "AsyncOperator": "durable_shuffle.recovery.calls.operator",
    "AsyncStep": "durable_shuffle.recovery.calls.batches",
    "Backoff": "durable_shuffle.shuffle.base.retry",
    "CallbackSink": "durable_shuffle.recovery.pipeline.plan.sinks",
    "DurableShuffle": "durable_shuffle.jobs.session",
    "FileSink": "durable_shuffle.recovery.pipeline.plan.sinks",
    "FolderSource": "durable_shuffle.recovery.pipeline.plan.folder",
    "Grouped": "durable_shuffle.shuffle.rows.reducers",
    "IteratorSource": "durable_shuffle.recovery.pipeline.plan.sources",
    "KeepUsed": "durable_shuffle.shuffle.release.unused",
    "LogProducer": "durable_shuffle.shuffle.write.log_producer",
    "Pipeline": "durable_shuffle.recovery.pipeline.pipeline",
    "PipelineClient": "durable_shuffle.recovery.pipeline.client",
    "PipelineSettings": "durable_shuffle.recovery.pipeline.plan.settings",
    "ResumableReducer": "durable_shuffle.shuffle.rows.reducers",
    "RetryPolicy": "durable_shuffle.shuffle.base.retry",
    "Settings": "durable_shuffle.shuffle.base.settings",
    "StageSource": "durable_shuffle.recovery.pipeline.plan.sources",
    "async_map": "durable_shuffle.recovery.calls.batches",
    "named_stage": "durable_shuffle.shuffle.log.named_stage",
    "open_view": "durable_shuffle.shuffle.consume.open_view",
    "pipeline_factory": "durable_shuffle.recovery.pipeline.plan.updates",
    "raised": "durable_shuffle.shuffle.base.retry",
    "register": "durable_shuffle.jobs.streaming.register",
    "spark_tasks": "durable_shuffle.jobs.spark_tasks.launcher",
    "write_output": "durable_shuffle.shuffle.consume.outputs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'durable_shuffle' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise ModuleNotFoundError(
            f"{name} needs PySpark: pip install 'durable-shuffle[spark]'", name="pyspark"
        ) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
