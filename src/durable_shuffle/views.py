"""Stored stages without Spark: read them with a view, or write one that is followed meanwhile."""

from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.named_stage import named_stage
from durable_shuffle.shuffle.write.log_producer import LogProducer

__all__ = ["LogProducer", "View", "named_stage", "open_view", "write_output"]
