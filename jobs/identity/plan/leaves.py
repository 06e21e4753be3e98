"""Handles what a plan reads: files, local rows, stored stages. Other inputs are unresolved.

A leaf adds its place in the plan to the tokens of the walk, and its content to a component of its
own. So the reason for a miss is exact: a changed file does not look like a changed plan.
"""

from collections.abc import Callable, Sequence
from typing import Any

from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.file_listing import file_entries
from durable_shuffle.jobs.identity.plan.jvm import Jvm, items, simple_name
from durable_shuffle.jobs.identity.plan.partition_filters import filtered_leaf, over_partitions
from durable_shuffle.jobs.identity.plan.rdd_chain import (
    MICRO_BATCH_ELSEWHERE,
    RddChain,
    micro_batch,
)
from durable_shuffle.jobs.identity.plan.sources import PlanSources

_FILE_INDEXES = (
    "org.apache.spark.sql.execution.datasources.",
    "org.apache.spark.sql.execution.streaming.",  # files written by a stream, listed by its log
)
_FILE_FORMATS = ("org.apache.spark.sql.",)
_FILE_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"


class PlanLeaves:
    """Handles leaf nodes; collects their content while the walk runs."""

    def __init__(self, walk: CatalystWalk, stage_of_rdd: Callable[[int], str | None]) -> None:
        self._walk = walk
        self._jvm: Jvm = walk.jvm
        self._stage_of_rdd = stage_of_rdd
        self._sources = PlanSources(walk)
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
        }

    def contents(self) -> dict[str, list[str]]:
        """Return what was collected, by component."""
        return {
            "files": self.files,
            "rows": [*self.rows, *self._chain.rows],
            "stages_below": self.stages_below,
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
            self._sources.relation(relation)
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
        self._sources.options(self._jvm.entries(relation.options()))
        self._files(relation.location(), conditions)

    def _relation_v2(self, node: Any, name: str) -> None:
        self._head(node, name)
        table = node.table()
        table_name = self._jvm.class_name(table)
        if not self._jvm.is_a(table, "org.apache.spark.sql.execution.datasources.v2.FileTable"):
            self._sources.table(table)
            self._sources.relation_v2(node)
            return
        if not table_name.startswith(_FILE_FORMATS):
            self._walk.give_up(f"the file format {table_name}")
        self._walk.tokens += [table_name, table.dataSchema().json()]
        self._sources.relation_v2(node)
        self._files(table.fileIndex())

    def _scan_v2(self, node: Any, name: str) -> None:
        """Visit a scan that the optimizer made from a relation."""
        self._head(node, name)
        self._sources.scan(node.scan())
        self._walk.visit(node.relation())
        self._walk.give_up(f"the data source of a {simple_name(name)}")

    def _hive(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._sources.hive_table(node.tableMeta())

    def _files(self, index: Any, conditions: Sequence[Any] = ()) -> None:
        index_name = self._jvm.class_name(index)
        if not index_name.startswith(_FILE_INDEXES):
            self._sources.files_of(index)
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
