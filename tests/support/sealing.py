"""A query of two exchanges; in which order a driver writes their records and starts tasks."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle.jobs.engine import classic
from durable_shuffle.shuffle.storage.local import LocalStorage

_DESCRIBE, _SEAL = "/log/0000000000", "/log/0000000001"


def two_exchanges(spark: SparkSession) -> DataFrame:
    numbers = spark.range(0, 4000, 1, 4).groupBy((F.col("id") % 40).alias("k")).count()
    return numbers.groupBy("count").agg(F.count("*").alias("n"), F.max("k").alias("most"))


class Watched:
    """Puts of records of stages, and Spark jobs of map tasks, in their order."""

    def __init__(self, patch: pytest.MonkeyPatch, before: Callable[["Watched", str], None]) -> None:
        self.order: list[str] = []
        self.described: list[str] = []
        """Stages, in the order of their DESCRIBEs."""
        self.second = threading.Event()
        put, run = LocalStorage.put_if_absent, classic.results_of_pieces

        def watched_put(storage: LocalStorage, key: str, content: bytes) -> Any:
            stage = key.rsplit("/log/", 1)[0]
            if not stage.startswith("tests/query-"):
                return put(storage, key, content)
            if key.endswith(_SEAL):
                before(self, stage)
            result = put(storage, key, content)
            if key.endswith(_DESCRIBE):
                self.described.append(stage)
            self.order += ["DESCRIBE"] * key.endswith(_DESCRIBE) + ["SEAL"] * key.endswith(_SEAL)
            if len(self.described) == 2:
                self.second.set()
            return result

        def watched_run(*given: Any, **more: Any) -> Any:
            self.order.append("tasks")
            return run(*given, **more)

        patch.setattr(LocalStorage, "put_if_absent", watched_put)
        patch.setattr(classic, "results_of_pieces", watched_run)
