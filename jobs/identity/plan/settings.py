"""The digest of the settings that decide results.

It covers every SQL setting that is set, except those listed here, which cannot change rows. So a
new or unknown setting may cause a fresh stage, but never a wrong reuse. Settings whose default
depends on the machine or the Spark version are included with their effective value.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import SparkSession

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.plan.jvm import Jvm
from durable_shuffle.jobs.identity.plan.splits import SPLIT_SETTINGS

_EFFECTIVE = (
    "spark.sql.session.timeZone",  # default: the machine's
    "spark.sql.ansi.enabled",  # default: by version and environment
    "spark.sql.caseSensitive",
    "spark.sql.storeAssignmentPolicy",
    "spark.sql.legacy.timeParserPolicy",
)
# These do not change rows, only how work is planned, split and shown. Prefixes end with a dot.
_HARMLESS = (
    "spark.sql.adaptive.",  # plans while running; partitions of a result are not its rows
    "spark.sql.artifact.",  # where session files live
    "spark.sql.autoBroadcastJoinThreshold",  # join algorithm
    "spark.sql.broadcastTimeout",
    "spark.sql.catalog.",  # where catalogs are; what they resolve to is in the plan
    "spark.sql.catalogImplementation",
    "spark.sql.cbo.",  # join order and algorithm
    "spark.sql.codegen.",
    "spark.sql.debug.",
    "spark.sql.execution.broadcastHashJoin.",
    "spark.sql.execution.reuseSubquery",
    "spark.sql.exchange.reuse",
    "spark.sql.inMemoryColumnarStorage.",
    "spark.sql.join.preferSortMergeJoin",
    "spark.sql.maxMetadataStringLength",
    "spark.sql.maxPlanStringLength",
    "spark.sql.pyspark.jvmStacktrace.enabled",
    "spark.sql.repl.",  # notebooks' display of data frames
    "spark.sql.sources.parallelPartitionDiscovery.",
    "spark.sql.statistics.",
    "spark.sql.streaming.",  # stages are batch plans
    "spark.sql.ui.",
    "spark.sql.warehouse.dir",  # tables count by their files
    *SPLIT_SETTINGS,  # splits have their own digest, numbers of partitions their own field
)


def settings_digest(jvm: Jvm, java_session: Any) -> str:
    """Return the digest of the settings that decide results in a JVM session, 32 hex digits."""
    conf = java_session.conf()
    pairs = jvm.entries(conf.getAll())
    return _digest(pairs, lambda key: str(conf.get(key)), str(java_session.version()))


def session_settings_digest(spark: SparkSession) -> str:
    """Like `settings_digest`, for any kind of session, by its public API."""
    return _digest(spark.conf.getAll, lambda key: str(spark.conf.get(key)), spark.version)


def _digest(pairs: Mapping[str, str], effective: Callable[[str], str], version: str) -> str:
    kept = {k: v for k, v in pairs.items() if k.startswith("spark.sql.") and not _is_harmless(k)}
    kept |= {key: effective(key) for key in _EFFECTIVE}
    kept["version"] = version
    return hex_digest(part for key in sorted(kept) for part in (key, kept[key]))


def _is_harmless(key: str) -> bool:
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in _HARMLESS)
