"""Many calls at a time to services, from inside a stage or from asyncio, with retries."""

from durable_shuffle.recovery.calls.batches import AsyncStep, async_map
from durable_shuffle.recovery.calls.operator import AsyncOperator
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised

__all__ = ["AsyncOperator", "AsyncStep", "Backoff", "RetryPolicy", "async_map", "raised"]
