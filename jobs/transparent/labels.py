"""Labels of what commands commit to tables that keep a history: which job and command it was.

A command is neither repeated nor left out here: a job that is started again runs it again. By the
label of the newest commit, a program or a person tells that a driver died behind it.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

DELTA = "spark.databricks.delta.commitInfo.userMetadata"
"""Setting of a session: what `DESCRIBE HISTORY` shows as `userMetadata`."""
ICEBERG = "spark.sql.iceberg.snapshot-property.durable-shuffle"
"""Setting of a session: entry `durable-shuffle` of a snapshot's summary."""


def label_of(job: str, application: str, command: str) -> str:
    """Return the label of a command, as JSON."""
    digest = hashlib.sha256(command.strip().encode()).hexdigest()[:16]
    return json.dumps({"job": job, "command": digest, "application": application})


@contextmanager
def labelled(spark: SparkSession, job: str, command: str) -> Iterator[None]:
    """Label what the session commits inside the block. Labels that the user sets stay, also those
    that the command itself sets, as an SQL script may.

    Not guaranteed: which label a commit gets that another thread makes meanwhile.

    Args:
        command: an SQL text, or the method of a writer and what it names.
    """
    label = label_of(job, spark.sparkContext.applicationId, command)
    unset = [key for key in (DELTA, ICEBERG) if spark.conf.get(key, None) is None]
    for key in unset:
        spark.conf.set(key, label)
    try:
        yield
    finally:
        for key in unset:
            if spark.conf.get(key, None) == label:
                spark.conf.unset(key)
