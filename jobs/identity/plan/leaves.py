"""Handles what a plan reads: files, local rows, stored stages, external sources.

A leaf adds its place in the plan to the tokens of the walk, and its content to a component of its
own. So the reason for a miss is exact: a changed file does not look like a changed plan.

The content of an external source (JDBC, DataSource V2, Hive) cannot be known, so it is unresolved.
But the plan shows which source it reads and what it asks for. This is part of the fingerprint: with
`version=` it is all that distinguishes two inputs.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark import SparkContext

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.files import file_entries, filtered_leaf, over_partitions
from durable_shuffle.jobs.identity.plan.jvm import Jvm, items, simple_name

MICRO_BATCH_ELSEWHERE = "a micro-batch, used outside of the thread that foreachBatch calls"
_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Spark's local properties in the thread of a micro-batch."""
_INPUT_FOLDERS = "mapreduce.input.fileinputformat.inputdir"
_FILE_INDEXES = (
    "org.apache.spark.sql.execution.datasources.",
    "org.apache.spark.sql.execution.streaming.",  # files written by a stream, listed by its log
)
_FILE_FORMATS = ("org.apache.spark.sql.",)
_FILE_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
# credentials do not decide rows, so rotating them must not cause a fresh stage
_CREDENTIALS = ("secret", "password", "token", "credential", "access.key", "account.key", ".sas")
_IN_URL = re.compile(
    r"(?i)(?<=[?&;,])[^=&;,?]*(?:secret|password|passwd|pwd|token|credential)[^=&;,?]*=[^&;,]*"
)
_USER_INFO = re.compile(r"(?<=//)([^/@:]*):[^/@]*@")


def without_credentials(options: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return a reader's options without credentials, sorted by name."""
    kept = {
        key: _USER_INFO.sub(r"\1@", _IN_URL.sub("", value))
        for key, value in options.items()
        if not any(word in key.lower() for word in _CREDENTIALS)
    }
    return sorted(kept.items())


class PlanLeaves:
    """Handles leaf nodes; collects their content while the walk runs."""

    def __init__(self, walk: CatalystWalk, stage_of_rdd: Callable[[int], str | None]) -> None:
        self._walk = walk
        self._jvm: Jvm = walk.jvm
        self._stage_of_rdd = stage_of_rdd
        self._chain = RddChain(walk)
        self._conditions: list[Any] = []
        """Partition conditions of the filters right above the next relation."""
        self.files: list[str] = []
        self.rows: list[str] = []
        self.stages_below: list[str] = []
        walk.handlers |= {
            "Filter": self._filter,
            "LogicalRelation": self._relation,
            "DataSourceV2Relation": self._relation_v2,
            "DataSourceV2ScanRelation": self._scan_v2,
            "StreamingDataSourceV2Relation": self._unknown_source,
            "HiveTableRelation": self._hive,
            "LocalRelation": self._local,
            "LogicalRDD": self._rdd,
            "ExternalRDD": self._rdd,
            "InMemoryRelation": self._cached,
            "CaseInsensitiveMap": lambda node, _: self._options(self._jvm.entries(node)),
        }

    def components(self) -> dict[str, str]:
        """Return the digests of what was collected, by component."""
        return {
            "files": hex_digest(self.files),
            "rows": hex_digest([*self.rows, *self._chain.rows]),
            "stages_below": hex_digest(self.stages_below),
        }

    def _head(self, node: Any, name: str) -> None:
        output = items(node.output())
        self._walk.tokens.append(f"{name} {len(output)}")
        for attribute in output:
            self._walk.visit(attribute)

    def _filter(self, node: Any, name: str) -> None:
        """Visit a filter; ignore the files of partitions that it excludes."""
        if not self._conditions:
            leaf, conditions = filtered_leaf(self._jvm, node)
            if leaf is not None and self._jvm.class_name(leaf.relation()) == _FILE_RELATION:
                self._conditions = over_partitions(self._jvm, leaf, conditions)
        self._walk.tokens.append(f"{name} 2")
        conditions, self._conditions = self._conditions, []
        self._walk.visit(node.condition())  # may hold subqueries over relations of their own
        self._conditions = conditions
        self._walk.visit(node.child())
        self._conditions = []

    def _relation(self, node: Any, name: str) -> None:
        self._head(node, name)
        conditions, self._conditions = self._conditions, []
        self._file_relation(node.relation(), conditions)

    def _file_relation(self, relation: Any, conditions: Sequence[Any] = ()) -> None:
        relation_name = self._jvm.class_name(relation)
        if relation_name != _FILE_RELATION:
            self._external_relation(relation)
            return
        file_format = self._jvm.class_name(relation.fileFormat())
        if not file_format.startswith(_FILE_FORMATS):
            self._walk.give_up(f"the file format {file_format}")
        self._walk.origin(relation.fileFormat())
        self._walk.tokens += [
            file_format,
            relation.dataSchema().json(),
            relation.partitionSchema().json(),
        ]
        self._walk.visit(relation.bucketSpec())
        self._options(self._jvm.entries(relation.options()))
        self._files(relation.location(), conditions)

    def _relation_v2(self, node: Any, name: str) -> None:
        self._head(node, name)
        table = node.table()
        table_name = self._jvm.class_name(table)
        if not self._jvm.is_a(table, "org.apache.spark.sql.execution.datasources.v2.FileTable"):
            self._table(table)
            self._table_use(node)
            return
        if not table_name.startswith(_FILE_FORMATS):
            self._walk.give_up(f"the file format {table_name}")
        self._walk.tokens += [table_name, table.dataSchema().json()]
        self._table_use(node)
        self._files(table.fileIndex())

    def _scan_v2(self, node: Any, name: str) -> None:
        """Visit a scan that the optimizer made from a relation."""
        self._head(node, name)
        self._scan(node.scan())
        self._walk.visit(node.relation())
        self._walk.give_up(f"the data source of a {simple_name(name)}")

    def _hive(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._hive_table(node.tableMeta())

    def _files(self, index: Any, conditions: Sequence[Any] = ()) -> None:
        index_name = self._jvm.class_name(index)
        if not index_name.startswith(_FILE_INDEXES):
            self._foreign_files(index)
            self._walk.give_up(f"files listed by {index_name}")
            return
        entries = file_entries(self._jvm, index, conditions)
        self._walk.tokens.append(f"files, list {len(self.files)}")
        self.files.append("\n".join(entries))

    def _local(self, node: Any, name: str) -> None:
        """Visit rows of createDataFrame and VALUES in Spark's internal form, digested in the JVM.

        Unlike their text, their serialization distinguishes null from an empty string.
        """
        self._head(node, name)
        self._internal_rows(node.data().toIndexedSeq())

    def _internal_rows(self, data: Any) -> None:
        self._walk.tokens.append(f"rows, list {len(self.rows)}")
        self.rows.append(f"{data.size()} {self._jvm.bytes_digest(data)}")

    def _rdd(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._scanned(node, node.rdd())

    def _scanned(self, node: Any, rdd: Any) -> None:
        """Visit an RDD: a stored stage, or else its chain."""
        stage = self._stage_of_rdd(int(rdd.id()))
        if stage is None:
            # Spark scans the RDD of a finished plan itself only for a micro-batch
            elsewhere = not micro_batch(self._jvm.context)
            if elsewhere and simple_name(self._jvm.class_name(rdd)) == "SQLExecutionRDD":
                self._walk.give_up(MICRO_BATCH_ELSEWHERE, f"RDD {rdd.id()}")
            self._chain.visit(rdd, f"an RDD scan ({self._columns(node)})")
            return
        self._walk.tokens.append(f"stage, list {len(self.stages_below)}")
        self.stages_below.append(stage)

    def _cached(self, node: Any, name: str) -> None:
        """Visit cached rows. They are unresolved: their plan is known, but not their settings."""
        self._head(node, name)
        self._walk.visit(node.cacheBuilder().logicalPlan())
        self._walk.give_up(f"a cached relation ({self._columns(node)})")

    def _unknown_source(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._walk.give_up_on(f"the data source of a {simple_name(name)}", node)

    def _columns(self, node: Any) -> str:
        """Return the first column names, for messages."""
        names = [attribute.name() for attribute in items(node.output().take(4))]
        return ", ".join(names) + (", …" if node.output().size() > len(names) else "")

    def _options(self, options: Mapping[str, str]) -> None:
        """Append reader options. Only their digest is stored; credentials are left out of it."""
        self._walk.tokens.append(repr(without_credentials(options)))

    def _external_relation(self, relation: Any) -> None:
        """Append a relation of the V1 API that is not one of Spark's file relations."""
        name = self._jvm.class_name(relation)
        what = f"the data source {simple_name(name)}"
        self._walk.tokens += [name, str(relation.schema().json())]
        if name == "org.apache.spark.sql.execution.datasources.jdbc.JDBCRelation":
            self._options(self._jvm.entries(relation.jdbcOptions().parameters()))
            self._walk.visit(relation.parts())
            self._walk.give_up(what)
        elif self._jvm.is_a(relation, "scala.Product"):  # its options are its arguments
            self._walk.tokens.append(f"arguments {relation.productArity()}")
            for i in range(relation.productArity()):
                self._walk.visit(relation.productElement(i))
            self._walk.give_up(what)
        else:
            self._walk.give_up_on(what, relation)

    def _table(self, table: Any) -> None:
        """Append a table of the V2 API."""
        name, walk = self._jvm.class_name(table), self._walk
        walk.origin(table)
        walk.tokens += [name, str(table.name())]
        methods = {str(method.getName()) for method in table.getClass().getMethods()}
        for ask in ("version", "id"):  # since Spark 4.1
            if ask in methods:
                walk.tokens.append(f"{ask} {getattr(table, ask)()}")
        self._options({str(k): str(v) for k, v in dict(table.properties()).items()})
        walk.give_up(f"the data source {simple_name(name)} ({table.name()})")

    def _table_use(self, node: Any) -> None:
        """Append how the query names a V2 table: options, catalog, identifier, time travel."""
        self._options({str(k).lower(): str(v) for k, v in dict(node.options()).items()})
        catalog, identifier = node.catalog(), node.identifier()
        self._walk.tokens += [
            str(catalog.get().name()) if catalog.isDefined() else "no catalog",
            str(identifier.get().toString()) if identifier.isDefined() else "no identifier",
        ]
        for i in range(node.productArity()):
            if str(node.productElementName(i)) == "timeTravelSpec":
                self._walk.visit(node.productElement(i))

    def _scan(self, scan: Any) -> None:
        """Append a scan of the V2 API, with what it reports about pushed filters and columns."""
        self._walk.origin(scan)
        self._walk.tokens += [
            self._jvm.class_name(scan),
            re.sub(r"@[0-9a-f]+|#\d+L?", "", str(scan.description())),
            str(scan.readSchema().json()),
        ]

    def _hive_table(self, table: Any) -> None:
        """Append a Hive table: name, location and schema."""
        storage = table.storage()
        self._walk.tokens += [
            str(table.identifier().toString()),
            str(storage.locationUri().toString()),
            str(table.schema().json()),
        ]
        self._walk.give_up(f"the Hive table {table.identifier().toString()}")

    def _foreign_files(self, index: Any) -> None:
        """Append the files of an index that is not one of Spark's own."""
        self._walk.origin(index)
        self._walk.tokens += sorted(str(path.toString()) for path in items(index.rootPaths()))
        self._walk.tokens += sorted(map(str, index.inputFiles()))


def micro_batch(context: SparkContext) -> dict[str, str]:
    """Return the component of the current micro-batch (query and batch), {} in any other thread.

    It is part of every unresolved plan in the thread of a micro-batch, because one `version` must
    not vouch for the rows of two batches.
    """
    query, batch = (context.getLocalProperty(name) for name in (_QUERY_ID, _BATCH_ID))
    return {"micro_batch": hex_digest([query or "", batch])} if batch is not None else {}


class RddChain:
    """Appends RDDs to the tokens of a walk; the walk must have a handler for Python functions.

    - Rows from the driver (`parallelize`, `createDataFrame` of a list): a digest of their bytes.
    - Python functions: as everywhere (`functions/identity.py`).
    - Spark's own JVM functions: their names and captured values.
    - Anything else is opaque: its class is part of the identity, and its id distinguishes it within
      this session.
    """

    def __init__(self, walk: CatalystWalk) -> None:
        self._walk, self._jvm = walk, walk.jvm
        self._numbers: dict[int, int] = {}
        self.rows: list[str] = []

    def visit(self, rdd: Any, what: str) -> None:
        """Append what is known of an RDD.

        Args:
            what: names the scan in messages, if the chain ends in something opaque.
        """
        number = int(rdd.id())
        if number in self._numbers:
            self._walk.tokens.append(f"rdd {self._numbers[number]}")
            return
        self._numbers[number] = len(self._numbers)
        name = self._jvm.class_name(rdd)
        self._walk.origin(rdd)
        self._walk.tokens.append(f"{name} {rdd.getNumPartitions()} {rdd.name()}")
        kind = simple_name(name)
        if kind == "ParallelCollectionRDD":
            data = self._jvm.field(rdd, "data")
            self._walk.tokens.append(f"rows, list {len(self.rows)}")
            self.rows.append(f"{data.size()} {self._jvm.bytes_digest(data.toIndexedSeq())}")
        elif kind == "PythonRDD":
            self._walk.visit(self._jvm.field(rdd, "func"))
            self._walk.visit(self._jvm.field(rdd, "isFromBarrier"))
        elif kind == "MapPartitionsRDD":
            self._walk.visit(self._jvm.field(rdd, "f"))
        elif self._jvm.is_a(rdd, "org.apache.spark.rdd.NewHadoopRDD"):
            self._folders(rdd.getConf(), what)
        elif kind == "HadoopRDD":
            self._folders(rdd.getJobConf(), what)
        elif kind != "UnionRDD":
            self._walk.give_up(what, f"RDD {number}")
        dependencies = items(rdd.dependencies())
        self._walk.tokens.append(f"below {len(dependencies)}")
        for dependency in dependencies:
            self._walk.tokens.append(self._jvm.class_name(dependency))
            self.visit(dependency.rdd(), what)

    def _folders(self, conf: Any, what: str) -> None:
        """Append the folders that Hadoop reads. Files are not listed, so they are unresolved."""
        self._walk.tokens.append(f"folders {conf.get(_INPUT_FOLDERS)}")
        self._walk.give_up(what)
