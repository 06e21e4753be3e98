"""Durable, resumable shuffle for PySpark.

`from durable_shuffle import DurableShuffle` is all most users need; `named_stage` and `open_view`
read a stored stage without Spark. The names are resolved at first use, so that importing this
package never imports pyspark.
"""

import importlib
from typing import TYPE_CHECKING, Any

from durable_shuffle.serialization.errors import DurableShuffleError

if TYPE_CHECKING:
    from durable_shuffle.jobs.session import DurableShuffle
    from durable_shuffle.shuffle.named_stage import named_stage
    from durable_shuffle.shuffle.open_view import open_view
    from durable_shuffle.shuffle.reducers import Grouped, ResumableReducer

__version__ = "0.1.0"
__all__ = [
    "DurableShuffle",
    "DurableShuffleError",
    "Grouped",
    "ResumableReducer",
    "__version__",
    "named_stage",
    "open_view",
]

_MODULES = {
    "DurableShuffle": "durable_shuffle.jobs.session",
    "Grouped": "durable_shuffle.shuffle.reducers",
    "ResumableReducer": "durable_shuffle.shuffle.reducers",
    "named_stage": "durable_shuffle.shuffle.named_stage",
    "open_view": "durable_shuffle.shuffle.open_view",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'durable_shuffle' has no attribute {name!r}")
