"""Posts an event to Spark's listeners, and so to its event log, for each stage that is sealed.

Listeners that do not know the event ignore it, and so does the history server. Counts must never
end a job: if this Spark cannot compile or post the event, there are no events.
"""

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from durable_shuffle.jobs.identity.plan.jvm import JVM_ERRORS
from durable_shuffle.jobs.jvm_rows.compiled import invoke, java_text, made_here

_LOG = logging.getLogger(__name__)


class ListenerEvents:
    """Posts events of one classic session; any thread may call it."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._java: Any = None
        self._refused = False
        self._lock = threading.Lock()

    def post(self, stage: Mapping[str, object]) -> None:
        """Post the values of a stage, which JSON must be able to hold."""
        if self._refused:
            return
        try:
            with self._lock:
                if self._java is None:
                    context = self._spark.sparkContext._jsc.sc()  # noqa: SLF001
                    self._java = made_here(self._spark, java_text("events"), [context])
            invoke(self._spark, self._java, "post", json.dumps(stage))
        except (*JVM_ERRORS, AttributeError, TypeError) as error:
            self._refused = True
            _LOG.info("no listener events, this Spark differs: %s", str(error)[:300])
