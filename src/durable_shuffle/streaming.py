"""Stages as tables, and as sources and sinks of streaming queries: `format("durable_shuffle")`."""

from typing import TYPE_CHECKING

from durable_shuffle._names import resolver

if TYPE_CHECKING:
    from durable_shuffle.jobs.streaming.register import register

__all__ = ["register"]

__getattr__ = resolver(__name__, {"register": "durable_shuffle.jobs.streaming.register"})


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
