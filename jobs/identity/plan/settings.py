"""Settings that decide results, settings that decide input splits, and the digest of the splits.

The digest of settings covers every setting of the session and of Hadoop that differs from its
default, except those listed in `harmless.py`, which cannot change rows. So a new or unknown setting
may cause a fresh stage, but never a wrong reuse. Settings whose default depends on the machine or
the Spark version are included with their effective value.

Producer p of two runs is the same only if it reads the same splits. An equal number of producers
is not enough: with another number of cores Spark can split the same files into equally many but
different pieces. The operators between leaves and root are part of the digest too: a broadcast join
keeps the partitions of its scan, a sort-merge join has those of its exchange.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.exclusions import names
from durable_shuffle.jobs.identity.functions.zones import zone_of_process
from durable_shuffle.jobs.identity.jvm.calls import (
    Jvm,
    entries,
    every,
    items,
    module,
    printed,
    query_execution,
    simple_name,
)
from durable_shuffle.jobs.identity.jvm.document import CODEGEN_INPUT, EXCHANGE, SPLITS
from durable_shuffle.jobs.identity.plan.harmless import (
    DEPLOYMENT,
    HADOOP,
    TUNING,
    WITHOUT_FUNCTIONS,
)
from durable_shuffle.jobs.identity.tables import iceberg
from durable_shuffle.jobs.in_one_call import in_one_call, standing_for
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.spark_versions import scala_iterator

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
_FILE_SCAN = "FileSourceScanExec"
_OWN_LEAVES = ("BatchScanExec", "InMemoryTableScanExec", "RangeExec", _FILE_SCAN)
_FILE_PARTITION = "org.apache.spark.sql.execution.datasources.FilePartition"
# wrappers that do not change partitions
_TRANSPARENT = frozenset({"WholeStageCodegenExec", "InputAdapter", "ColumnarToRowExec"})
_HARMLESS = names((*DEPLOYMENT, *TUNING))
_BATCHES = names(WITHOUT_FUNCTIONS)
_OF_HADOOP = names(HADOOP)
_COPIED = "spark.hadoop."
"""Prefix of the settings that Spark copies into Hadoop's configuration when it starts."""
_DEFAULT = re.compile(r"ConfigEntry\(key=(\S+?), defaultValue=(.*?), doc=", re.DOTALL)
_CONFIGURATION = "org.apache.hadoop.conf.Configuration"
_DEFAULTS: WeakKeyDictionary[SparkContext, Mapping[str, str]] = WeakKeyDictionary()
_HADOOP_DEFAULTS: WeakKeyDictionary[SparkContext, Any] = WeakKeyDictionary()

_PLACES: WeakKeyDictionary[SparkContext, str] = WeakKeyDictionary()
_OPTIONS = ("spark.executor.defaultJavaOptions", "spark.executor.extraJavaOptions")


class Settings(NamedTuple):
    """Digests of the settings that decide results, 32 hex digits each."""

    plain: str
    """Of a plan without Python functions."""
    with_functions: str

    def of(self, *, functions: bool) -> str:
        """Return the digest for a plan with or without Python functions."""
        return self.with_functions if functions else self.plain


def settings_digest(jvm: Jvm, df: DataFrame) -> Settings:
    """Return the digests of the settings that decide results in a DataFrame's session."""
    return _settings_of(jvm, df._jdf, lambda frame: frame.sparkSession())  # noqa: SLF001


def _settings_of(jvm: Jvm, of: Any, session_of: Callable[[Any], Any]) -> Settings:
    asked = asked_settings(jvm)
    return digest_of(jvm, in_one_call(jvm.root, lambda root, of: asked(root, session_of(of)), of))


def asked_settings(jvm: Jvm) -> Callable[[Any, Any], tuple[Any, ...]]:
    """Return a function of `in_one_call` that asks a session for what `digest_of` takes."""
    of_hadoop = _hadoop_defaults(jvm)

    def asked(root: Any, session: Any) -> tuple[Any, ...]:
        conf, hadoop = session.conf(), session.sparkContext().hadoopConfiguration()
        known = standing_for(root, of_hadoop)
        changed = scala_iterator(root, hadoop.iterator()).toSet().diff(known)
        texts = printed(conf.getAll()), printed(changed)
        return (session.version(), *texts, *map(conf.get, _EFFECTIVE))

    return asked


def digest_of(jvm: Jvm, found: Sequence[Any]) -> Settings:
    """Return the digests of the settings that `asked_settings` found."""
    defaults = _sql_defaults(jvm)
    version, sql, hadoop, *values = found
    changed = {k: v for k, v in entries(sql, " -> ").items() if defaults.get(k) != v}
    changed |= {f"{_COPIED}{key}": value for key, value in entries(hadoop, "=").items()}
    effective = dict(zip(_EFFECTIVE, values, strict=True))
    return _digest(changed, effective.__getitem__, version, place_of(jvm), zone_of_process())


def cached_settings(jvm: Jvm, builder: Any) -> Settings | None:
    """Return the digests of the settings under which rows were cached; None if unknown.

    Spark clones the session when it caches rows, so the clone has the settings of that time.

    Args:
        builder: the `CachedRDDBuilder` of an InMemoryRelation.
    """
    session = builder.cachedPlan().session()
    if session is None or session.conf().get(_OFF_IN_CLONES) != "false":
        return None
    return _settings_of(jvm, session, lambda session: session)


def session_settings_digest(spark: SparkSession) -> Settings:
    """Like `settings_digest`, for any kind of session, by its public API."""
    get = spark.conf.get
    return _digest(spark.conf.getAll, lambda key: str(get(key)), spark.version, "", "")


def place_of(jvm: Jvm) -> str:
    """Return locale and zone of the JVMs, which decide upper() or a date as text. Asked once."""
    if jvm.context not in _PLACES:

        def asked(root: Any, context: Any) -> tuple[Any, ...]:
            locale = getattr(root, "java.util.Locale").getDefault().toString()
            zone = getattr(root, "java.util.TimeZone").getDefault().getID()
            return locale, zone, *(context.getConf().get(name, "") for name in _OPTIONS)

        java_context = cast("Any", jvm.context)._jsc  # noqa: SLF001
        *place, default, extra = in_one_call(jvm.root, asked, java_context)
        options = f"{default} {extra}".split()
        own = sorted(option for option in options if option.startswith("-Duser."))
        _PLACES[jvm.context] = repr([*place, *own])
    return _PLACES[jvm.context]


def _digest(
    changed: Mapping[str, str],
    effective: Callable[[str], str],
    version: str,
    place: str,
    workers: str,
) -> Settings:
    """Return the digests of settings and of what else decides results in the same way.

    Args:
        changed: settings that are not at their default.
        effective: returns the value of a setting.
        place: locale and zone of the JVMs.
        workers: zone of Python workers.
    """
    kept = {k: v for k, v in changed.items() if not is_harmless(k)}
    kept |= {key: effective(key) for key in _EFFECTIVE}
    kept |= {"version": version, "place": place}
    plain = {k: v for k, v in kept.items() if k not in _BATCHES}
    digests = [
        hex_digest(text for pair in sorted(of.items()) for text in pair)
        for of in (plain, {**kept, "workers": workers})
    ]
    return Settings(*digests)


def is_harmless(key: str) -> bool:
    """Return whether no row of any plan depends on a setting of a session."""
    of_hadoop = key.removeprefix(_COPIED) if key.startswith(_COPIED) else key
    if of_hadoop != key or not key.startswith("spark."):
        return _is_listed(of_hadoop, _OF_HADOOP)
    return _is_listed(key, _HARMLESS)


def _is_listed(key: str, listed: Collection[str]) -> bool:
    """Return whether a list has a setting's name or one of its namespaces."""
    dots = (i + 1 for i, char in enumerate(key) if char == ".")
    return key in listed or any(key[:end] in listed for end in dots)


def _sql_defaults(jvm: Jvm) -> Mapping[str, str]:
    """Return the defaults of all settings that Spark SQL knows. They are asked once."""
    if jvm.context not in _DEFAULTS:

        def printed_entries(root: Any) -> Any:
            known = module(root, "org.apache.spark.sql.internal.SQLConf")
            return known.getConfigEntries().toString()

        found = _DEFAULT.findall(in_one_call(jvm.root, printed_entries))
        _DEFAULTS[jvm.context] = dict(found)
    return _DEFAULTS[jvm.context]


def _hadoop_defaults(jvm: Jvm) -> Any:
    """Return the defaults in Hadoop's jars, without the files of this machine, as a Scala Set.

    Variables such as ${user.name} are as they are.
    """
    if jvm.context not in _HADOOP_DEFAULTS:

        def defaults(root: Any) -> Any:
            plain = getattr(root, _CONFIGURATION)(False)  # noqa: FBT003
            for of in ("core", "mapred", "yarn", "hdfs", "hdfs-rbf"):
                plain.addResource(f"{of}-default.xml")
            return scala_iterator(root, plain.iterator()).toSet()

        _HADOOP_DEFAULTS[jvm.context] = in_one_call(jvm.root, defaults)
    return _HADOOP_DEFAULTS[jvm.context]


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
    _collect(jvm, jvm.seen(plan, SPLITS), parts)
    return hex_digest(parts)


def split_settings(spark: SparkSession) -> dict[str, str]:
    """Return the effective split settings of a session, so that another run can plan with them.

    A setting that defaults to the number of cores gets its current value. A setting that means "no
    limit" when unset is left out; to plan in the same way, leave it unset.
    """

    def asked(_: Any, session: Any) -> tuple[Any, ...]:
        conf = session.conf()
        return session.sparkContext().defaultParallelism(), *map(conf.get, SPLIT_SETTINGS)

    java_session = cast("Any", spark)._jsparkSession  # noqa: SLF001
    cores, *found = in_one_call(classes_of(spark), asked, java_session)
    values = dict(zip(SPLIT_SETTINGS, found, strict=True))
    settings = {key: value for key, value in values.items() if value not in (None, "<undefined>")}
    leaf = settings.setdefault("spark.sql.leafNodeDefaultParallelism", str(cores))
    settings.setdefault("spark.sql.files.minPartitionNum", leaf)
    return {key: str(value) for key, value in settings.items()}


def _collect(jvm: Jvm, plan: Any, parts: list[str]) -> None:
    nodes = [(node, simple_name(jvm.class_name(node))) for node in every(plan)]
    scans = [node for node, name in nodes if name == _FILE_SCAN]
    files = iter(_files(jvm, scans, lambda scan: scan.inputRDD().filePartitions()))
    reading = [node for node, name in nodes if _reads_rdds(jvm, node, name)]
    inputs = iter(_inputs(jvm, reading))
    for node, name in nodes:
        children = items(node.children())
        if name not in _TRANSPARENT:
            parts.append(f"{name} {len(children)}")
        if name == _FILE_SCAN:
            parts += next(files)
        elif _reads_rdds(jvm, node, name):
            parts += next(inputs)
        elif not children:
            parts += _leaf(jvm, node, name)
        elif jvm.is_a(node, EXCHANGE):
            partitioning = node.outputPartitioning()
            kind = simple_name(jvm.class_name(partitioning))
            parts.append(f"{kind} {partitioning.numPartitions()}")
        elif name == "CoalesceExec":
            rdd = in_one_call(jvm.root, lambda _, one: one.execute(), node)
            for partition in rdd.partitions():  # which are joined may follow their hosts
                parts.append(str(list(partition.parentsIndices())))


def _leaf(jvm: Jvm, node: Any, name: str) -> list[str]:
    if name == "BatchScanExec":
        (partitions,) = _ready(jvm, [node], lambda one: one.inputPartitions())
        if partitions.size() and jvm.class_name(partitions.apply(0)) == _FILE_PARTITION:
            return _files(jvm, [node], lambda scan: scan.inputPartitions())[0]
        if partitions.size() and jvm.class_name(partitions.apply(0)) == iceberg.PARTITION:
            return [iceberg.split_text(jvm, partition) for partition in items(partitions)]
        return [str(partitions.size())]
    if name == "InMemoryTableScanExec":
        parts = [str(node.outputPartitioning().numPartitions())]
        _collect(jvm, cached_operators(jvm, node), parts)
        return parts
    if name == "RangeExec":

        def bounds(_: Any, node: Any) -> tuple[Any, ...]:
            of_rows = node.start(), node.end(), node.step()
            return *of_rows, node.outputPartitioning().numPartitions()

        return list(map(str, in_one_call(jvm.root, bounds, node)))
    return [str(node.outputPartitioning().numPartitions())]


def _reads_rdds(jvm: Jvm, node: Any, name: str) -> bool:
    """Return whether an operator is a leaf whose splits are those of the RDDs that it reads."""
    may = name not in _OWN_LEAVES and jvm.is_a(node, CODEGEN_INPUT)
    return may and not items(node.children())


def _inputs(jvm: Jvm, leaves: Sequence[Any]) -> list[list[str]]:
    """Return of each leaf the partitions of the RDDs that it reads."""

    def asked(_: Any, *leaves: Any) -> tuple[Any, ...]:
        rdds = [leaf.inputRDDs() for leaf in leaves]
        each = [(of.head().getNumPartitions(), of.size(), of.tail()) for of in rdds]
        return tuple(one for of in each for one in of)

    found = iter(in_one_call(jvm.root, asked, *leaves) if leaves else ())
    counts = list[list[str]]()
    for first, count, others in zip(found, found, found, strict=True):
        more = items(others) if count > 1 else []
        counts.append([str(first), *(str(rdd.getNumPartitions()) for rdd in more)])
    return counts


def cached_operators(jvm: Jvm, scan: Any) -> Any:
    """Return the physical plan that made the rows of an InMemoryTableScanExec."""
    plan = scan.relation().cacheBuilder().cachedPlan()
    adaptive = simple_name(jvm.class_name(plan)) == "AdaptiveSparkPlanExec"
    return plan.initialPlan() if adaptive else plan


def _files(jvm: Jvm, scans: Sequence[Any], partitions: Callable[[Any], Any]) -> list[list[str]]:
    """Return of each scan the number of partitions, then for each one its pieces as Spark prints
    them.

    A piece has path, first byte, end (exclusive) and partition values.
    """
    counts = _ready(jvm, scans, lambda scan: partitions(scan).size())

    def texts(root: Any, *scans: Any) -> tuple[Any, ...]:
        text = getattr(root, "scala.runtime.ScalaRunTime").stringOf
        each = [(partitions(scan), count) for scan, count in zip(scans, counts, strict=True)]
        return tuple(text(found.apply(n).files()) for found, count in each for n in range(count))

    found = iter(in_one_call(jvm.root, texts, *scans) if any(counts) else ())
    return [[str(count), *(next(found) for _ in range(count))] for count in counts]


def _ready(jvm: Jvm, scans: Sequence[Any], said: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return what a function says of scans whose subqueries have run."""

    def ready(_: Any, *scans: Any) -> tuple[Any, ...]:
        for scan in scans:
            scan.prepare()
            scan.waitForSubqueries()
        return tuple(map(said, scans))

    return in_one_call(jvm.root, ready, *scans) if scans else ()
