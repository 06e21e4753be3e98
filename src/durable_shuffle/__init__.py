"""Durable, resumable shuffle for PySpark.

`from durable_shuffle import DurableShuffle` is all most users need. More is in modules of its own:

- `durable_shuffle.streaming`: stages as tables and as sources and sinks of streaming queries
- `durable_shuffle.views`: stored stages without Spark
- `durable_shuffle.aio`: calls to services from inside a stage
- `durable_shuffle.pipelines`: pipelines, and clients that operate them
- `durable_shuffle.results`: the types of what calls return
- `durable_shuffle.errors`: everything that is raised on purpose

The names are resolved at first use, so that importing this package never imports pyspark. Logs go
to the logger `durable_shuffle`, which is silent until the program gives it a handler.
"""

import logging
from typing import TYPE_CHECKING

from durable_shuffle._names import resolver
from durable_shuffle.serialization.errors import DurableShuffleError, FencedError

if TYPE_CHECKING:
    from durable_shuffle.jobs.session import DurableShuffle
    from durable_shuffle.shuffle.base.settings import Settings
    from durable_shuffle.shuffle.release.unused import KeepUsed
    from durable_shuffle.shuffle.rows.reducers import Grouped, ResumableReducer

__version__ = "0.1.0"
__all__ = [
    "DurableShuffle",
    "DurableShuffleError",
    "FencedError",
    "Grouped",
    "KeepUsed",
    "ResumableReducer",
    "Settings",
    "__version__",
]

_MODULES = {
    "DurableShuffle": "durable_shuffle.jobs.session",
    "Grouped": "durable_shuffle.shuffle.rows.reducers",
    "KeepUsed": "durable_shuffle.shuffle.release.unused",
    "ResumableReducer": "durable_shuffle.shuffle.rows.reducers",
    "Settings": "durable_shuffle.shuffle.base.settings",
}

_SUBMODULES = ("aio", "errors", "pipelines", "results", "streaming", "views")

logging.getLogger(__name__).addHandler(logging.NullHandler())
__getattr__ = resolver(__name__, _MODULES, _SUBMODULES)


def __dir__() -> list[str]:
    """Return what users may use; notebooks complete these names."""
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*special, *__all__, *_SUBMODULES})
