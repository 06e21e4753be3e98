"""Durable, resumable shuffle for PySpark.

`from durable_shuffle import DurableShuffle` is all most users need. The name is resolved at first
use, so that importing this package never imports pyspark.
"""

from typing import TYPE_CHECKING, Any

from durable_shuffle.serialization.errors import DurableShuffleError

if TYPE_CHECKING:
    from durable_shuffle.jobs.session import DurableShuffle

__version__ = "0.1.0"
__all__ = ["DurableShuffle", "DurableShuffleError", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "DurableShuffle":
        from durable_shuffle.jobs.session import DurableShuffle

        return DurableShuffle
    raise AttributeError(f"module 'durable_shuffle' has no attribute {name!r}")
