"""Settings that decide results, settings that decide input splits, and the digest of the splits.

The digest of settings covers every SQL setting that is set, except those listed here, which cannot
change rows. So a new or unknown setting may cause a fresh stage, but never a wrong reuse. Settings
whose default depends on the machine or the Spark version are included with their effective value.

Producer p of two runs is the same only if it reads the same splits. An equal number of producers
is not enough: with another number of cores Spark can split the same files into equally many but
different pieces. The operators between leaves and root are part of the digest too: a broadcast join
keeps the partitions of its scan, a sort-merge join has those of its exchange.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.plan import iceberg
from durable_shuffle.jobs.identity.plan.jvm import Jvm, items, query_execution, simple_name

SPLIT_SETTINGS = (
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.files.openCostInBytes",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.maxPartitionNum",
    "spark.sql.leafNodeDefaultParallelism",
    "spark.sql.shuffle.partitions",
)
_EFFECTIVE = (
    "spark.sql.session.timeZone",  # default: the machine's
    "spark.sql.ansi.enabled",  # default: by version and environment
    "spark.sql.caseSensitive",
    "spark.sql.storeAssignmentPolicy",
    "spark.sql.legacy.timeParserPolicy",
)
_OFF_IN_CLONES = "spark.sql.sources.bucketing.autoBucketedScan.enabled"
"""A setting without effect on rows, which Spark turns off in its clones of sessions that cache."""
_EXCHANGE = "org.apache.spark.sql.execution.exchange.Exchange"
_FILE_PARTITION = "org.apache.spark.sql.execution.datasources.FilePartition"
# wrappers that do not change partitions
_TRANSPARENT = frozenset({"WholeStageCodegenExec", "InputAdapter", "ColumnarToRowExec"})
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
    _OFF_IN_CLONES,
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


def cached_settings(jvm: Jvm, builder: Any) -> str:
    """Return the digest of the settings under which rows were cached; "" if unknown.

    Spark clones the session when it caches rows, so the clone has the settings of that time.

    Args:
        builder: the `CachedRDDBuilder` of an InMemoryRelation.
    """
    session = builder.cachedPlan().session()
    if session is None or session.conf().get(_OFF_IN_CLONES) != "false":
        return ""
    return settings_digest(jvm, session)


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


def identify_splits(planned: DataFrame) -> str:
    """Return the digest of every leaf's splits in partition order, 32 hex digits.

    It is equal in every JVM run. Subqueries that prune a scan's partitions run inside this call.

    Args:
        planned: a DataFrame of a session without adaptive execution.
    """
    return plan_splits(
        Jvm(planned.sparkSession.sparkContext), query_execution(planned).executedPlan()
    )


def plan_splits(jvm: Jvm, plan: Any, more: Sequence[str] = ()) -> str:
    """Like `identify_splits`, for a physical plan.

    Args:
        more: further texts that decide which rows a producer reads.
    """
    parts = list(more)
    _collect(jvm, plan, parts)
    return hex_digest(parts)


def split_settings(spark: SparkSession) -> dict[str, str]:
    """Return the effective split settings of a session, so that another run can plan with them.

    A setting that defaults to the number of cores gets its current value. A setting that means "no
    limit" when unset is left out; to plan in the same way, leave it unset.
    """
    cores = str(cast("Any", spark).sparkContext.defaultParallelism)
    values = {key: spark.conf.get(key) for key in SPLIT_SETTINGS}
    settings = {key: value for key, value in values.items() if value not in (None, "<undefined>")}
    leaf = settings.setdefault("spark.sql.leafNodeDefaultParallelism", cores)
    settings.setdefault("spark.sql.files.minPartitionNum", leaf)
    return {key: str(value) for key, value in settings.items()}


def _collect(jvm: Jvm, node: Any, parts: list[str]) -> None:
    full_name = jvm.class_name(node)
    name, children = simple_name(full_name), jvm.children(node, full_name)
    if name not in _TRANSPARENT:
        parts.append(f"{name} {len(children)}")
    if not children:
        parts += _leaf(jvm, node, name)
    elif jvm.is_a(node, _EXCHANGE):
        partitioning = node.outputPartitioning()
        kind = simple_name(jvm.class_name(partitioning))
        parts.append(f"{kind} {partitioning.numPartitions()}")
    elif name == "CoalesceExec":
        for partition in node.execute().partitions():  # which are joined may follow their hosts
            parts.append(str(list(partition.parentsIndices())))
    for child in children:
        _collect(jvm, child, parts)


def _leaf(jvm: Jvm, node: Any, name: str) -> list[str]:
    if name == "FileSourceScanExec":
        node.prepare()
        node.waitForSubqueries()
        return _files(jvm, node.inputRDD().filePartitions())
    if name == "BatchScanExec":
        node.prepare()
        node.waitForSubqueries()
        partitions = node.inputPartitions()
        if partitions.size() and jvm.class_name(partitions.apply(0)) == _FILE_PARTITION:
            return _files(jvm, partitions)
        if partitions.size() and jvm.class_name(partitions.apply(0)) == iceberg.PARTITION:
            return [iceberg.split_text(jvm, partition) for partition in items(partitions)]
        return [str(partitions.size())]
    if name == "InMemoryTableScanExec":
        parts = [str(node.outputPartitioning().numPartitions())]
        _collect(jvm, cached_operators(jvm, node), parts)
        return parts
    if name == "RangeExec":
        bounds = (node.start(), node.end(), node.step())
        return [*map(str, bounds), str(node.outputPartitioning().numPartitions())]
    if jvm.is_a(node, "org.apache.spark.sql.execution.InputRDDCodegen"):
        return [str(rdd.getNumPartitions()) for rdd in items(node.inputRDDs())]
    return [str(node.outputPartitioning().numPartitions())]


def cached_operators(jvm: Jvm, scan: Any) -> Any:
    """Return the physical plan that made the rows of an InMemoryTableScanExec."""
    plan = scan.relation().cacheBuilder().cachedPlan()
    adaptive = simple_name(jvm.class_name(plan)) == "AdaptiveSparkPlanExec"
    return plan.initialPlan() if adaptive else plan


def _files(jvm: Jvm, partitions: Any) -> list[str]:
    """Return the number of partitions, then for each one its pieces as Spark prints them.

    A piece has path, first byte, end (exclusive) and partition values.
    """
    texts = [jvm.text(partition.files()) for partition in items(partitions)]
    return [str(len(texts)), *texts]
