"""Handles what a plan reads: files, tables, local rows, cached rows, stored stages.

A leaf adds its place in the plan to the tokens of the walk, and its content to a component of its
own. So the reason for a miss is exact: a changed file does not look like a changed plan.

The content of other sources (`sources.py`) cannot be known, so they are unresolved. But the plan
shows which source it reads and what it asks for. This is part of the fingerprint: with `version=`
it is all that distinguishes two inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.jvm.calls import (
    JVM_ERRORS,
    Jvm,
    UnknownInternalsError,
    items,
    module,
    simple_name,
)
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.conditions import Conditions, column_ids, over
from durable_shuffle.jobs.identity.plan.files import (
    ListedFiles,
    is_file_relation,
    is_known_index,
    listed_files,
    usable,
)
from durable_shuffle.jobs.identity.plan.fixed import cached_plan
from durable_shuffle.jobs.identity.plan.rdds import (
    MICRO_BATCH_ELSEWHERE,
    RddChain,
    is_checkpoint,
    micro_batch,
)
from durable_shuffle.jobs.identity.plan.read_options import FAULTS, left_out, named_files
from durable_shuffle.jobs.identity.plan.sources import Sources
from durable_shuffle.jobs.identity.tables import delta, iceberg
from durable_shuffle.jobs.in_one_call import in_one_call
from durable_shuffle.jobs.spark_versions import sql_class_name

_FILE_FORMATS = ("org.apache.spark.sql.",)
_FILE_TABLE = "org.apache.spark.sql.execution.datasources.v2.FileTable"
_UNCACHED = "use the DataFrame from before the cache, or give version="
_MOST_QUERIES = 64
"""Of an application. Each keeps some MB in the driver's JVM, whatever its rows take."""
_FEW_ROWS = 1000
"""So many rows may cost three calls each."""
_NO_CONDITION: tuple[Sequence[Any], ...] = ((),)
"""One place in the plan, without conditions."""


@dataclass(frozen=True, slots=True)
class QueryRows:
    """The identity of the rows that `query` gave for a plan that can be recognised."""

    digest: str
    reads: tuple[str, ...]
    """The stored stages that they are made of, each as name and fingerprint."""
    inputs: tuple[ListedFiles, ...]


Queries = dict[tuple["KnownRdds", int], Callable[[], QueryRows | None]]
"""What knows an RDD, and the RDD's id -> what identifies its rows."""


class KnownRdds:
    """What is known of the RDDs of this job's frames, by their ids.

    Args:
        queries: what is known of the queries of all jobs of an application, to begin with {}.
    """

    def __init__(self, queries: Queries | None = None) -> None:
        self.stages: dict[int, str] = {}
        """Name and fingerprint of the stored stage that an RDD reads."""
        self._queries: Queries = {} if queries is None else queries

    def add_query(self, rdd: int, rows: Callable[[], QueryRows | None]) -> None:
        """Note that an RDD has a query's rows.

        Args:
            rows: what identifies them, None if nothing does. It is asked when the rows are used:
                few results are. The oldest of many is forgotten: it holds the query's analyzed
                plan and a session, and must hold nothing larger.
        """
        self._queries[self, rdd] = rows
        if len(self._queries) > _MOST_QUERIES:
            del self._queries[next(iter(self._queries))]

    def query(self, rdd: int) -> QueryRows | None:
        """Return the identity of an RDD that has a query's rows."""
        rows = self._queries.get((self, rdd))
        return None if rows is None else rows()


SessionSettings = dict[int, tuple[Callable[[str], str | None], ...]]
"""Identity of a session -> what returns its settings, and those of the active session."""


class PlanLeaves:
    """Handles leaf nodes; collects their content while the walk runs."""

    def __init__(self, walk: CatalystWalk, known: KnownRdds) -> None:
        self._walk = walk
        self._jvm: Jvm = walk.jvm
        self._known = known
        self._chain = RddChain(walk)
        self._sources = Sources(walk)
        self.conditions = Conditions(walk.jvm)
        self._settings: SessionSettings = {}
        self.printed: dict[int, str | None] = {}
        """Identity of a list of filters -> the listing of files with them, if it is known."""
        self.cached: list[Any] = []
        """Builders of the cached rows that the plan reads."""
        self.files: list[str] = []
        self.inputs: list[ListedFiles] = []
        """What `files` was made of, to be asked again."""
        self.rows: list[str] = []
        self.stages_below: list[str] = []
        walk.handlers |= {
            "LogicalRelation": self._relation,
            "DataSourceV2Relation": self._relation_v2,
            "DataSourceV2ScanRelation": self._scan_v2,
            "StreamingDataSourceV2Relation": self._unknown_source,
            "HiveTableRelation": self._hive,
            "LocalRelation": self._local,
            "CommandResult": self._result,
            "LogicalRDD": self._rdd,
            "ExternalRDD": self._rdd,
            "InMemoryRelation": self._cached,
            "VariableReference": self._variable,
            "CaseInsensitiveMap": lambda node, _: self._sources.options(self._jvm.entries(node)),
        }

    def components(self) -> dict[str, str]:
        """Return the digests of what was collected, by component."""
        return {
            "files": hex_digest(self.files),
            "rows": hex_digest([*self.rows, *self._chain.rows]),
            "stages_below": hex_digest(self.stages_below),
        }

    def _head(self, node: Any, name: str) -> None:
        self._walk.tokens.append(name)
        self._walk.columns(node)

    def _relation(self, node: Any, name: str) -> None:
        self._head(node, name)
        relation = node.relation()
        if not is_file_relation(self._jvm, relation):
            self._sources.relation(relation)
            return
        places = [usable(self._jvm, node, found) for found in self.conditions.above(node)]
        self._file_relation(relation, places)

    def _file_relation(
        self, relation: Any, places: Sequence[Sequence[Any]] = _NO_CONDITION
    ) -> None:
        """Append one of Spark's file relations.

        Args:
            places: the conditions, of those that `usable` returns, at each place in the plan.
        """
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
        options = self._jvm.entries(relation.options())
        if delta.is_delta_index(self._jvm.class_name(relation.location())):
            self._walk.tokens += delta.columns_in_files(relation.fileFormat())
            options = delta.without_version(options)
        self._sources.options(options)
        self._more_than_files(relation.sparkSession(), options)
        self._files(relation.location(), places)

    def _more_than_files(self, session: Any, options: Mapping[str, str]) -> None:
        """Give up a read whose rows depend on more than its files.

        Spark asks the active session in some readers and the frame's own in others.
        """
        number = self._number(session)
        if number not in self._settings:
            names = [f"spark.sql.files.{name}" for name in FAULTS]

            def asked(root: Any, session: Any) -> tuple[Any, ...]:
                active = module(root, sql_class_name("SparkSession")).active()
                return tuple(one.conf().get(name) for one in (session, active) for name in names)

            found = in_one_call(self._jvm.root, asked, session)
            each = found[: len(names)], found[len(names) :]
            self._settings[number] = tuple(dict(zip(names, of, strict=True)).get for of in each)
        for what in (*named_files(options), *left_out(options, self._settings[number])):
            self._walk.give_up(what)

    def _relation_v2(self, node: Any, name: str) -> None:
        self._head(node, name)
        table = node.table()
        table_name = self._jvm.class_name(table)
        if table_name == iceberg.TABLE:
            found = self.conditions.above(node)
            ids = column_ids(node, tuple(map(str, table.schema().fieldNames())))
            places = [over(self._jvm, one, ids) for one in found]
            if iceberg.is_moving(self._jvm, node):  # it could not be fixed
                places = []
            self._iceberg(node, places)
            return
        if not self._jvm.is_a(table, _FILE_TABLE):
            self._sources.table(table)
            self._sources.use(node)
            return
        if not table_name.startswith(_FILE_FORMATS):
            self._walk.give_up(f"the file format {table_name}")
        self._walk.tokens += [table_name, table.dataSchema().json()]
        self._sources.use(node)
        self._more_than_files(table.sparkSession(), dict(node.options()))
        self._files(table.fileIndex())

    def _iceberg(self, node: Any, places: Sequence[Sequence[Any]]) -> None:
        """Append an Iceberg table.

        Args:
            node: the relation.
            places: the conditions at each place in the plan; none if the table moves.
        """
        table, options = node.table(), node.options()
        self._walk.origin(table)
        what = f"the Iceberg table {table.name()}, in an unknown form,"
        if not places:
            self._walk.give_up_on(what, table)
            return
        try:
            scans = [iceberg.scan_of(self._jvm, table, options, found) for found in places]
            self._iceberg_scans(table, node.output(), scans)
        except JVM_ERRORS:
            self._walk.give_up_on(what, table)

    def _iceberg_scans(self, table: Any, output: Any, scans: Sequence[Any]) -> None:
        """Append scans of one Iceberg table.

        Args:
            output: the columns of the operator.
        """
        tokens = iceberg.table_tokens(self._jvm, table)
        if any(self._jvm.class_name(scan) != iceberg.SCAN for scan in scans):
            raise UnknownInternalsError("another kind of scan")
        if iceberg.is_metadata(self._jvm, table):
            files = [[*tokens, *iceberg.versions(self._jvm, scan)] for scan in scans]
        else:
            self._walk.tokens += tokens
            columns = {str(column.name()) for column in items(output)}
            files = [iceberg.scanned_files(self._jvm, scan, columns) for scan in scans]
        self._listed(files)

    def _scan_v2(self, node: Any, name: str) -> None:
        """Visit a scan that the optimizer made from a relation."""
        self._head(node, name)
        self._sources.scan(node.scan())
        self._walk.visit(node.relation())
        self._walk.give_up(f"the data source of a {simple_name(name)}")

    def _hive(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._sources.hive_table(node.tableMeta())

    def _files(self, index: Any, places: Sequence[Sequence[Any]] = _NO_CONDITION) -> None:
        if not is_known_index(self._jvm, index):
            self._sources.files(index)
            return
        known = delta.is_delta_index(self._jvm.class_name(index))
        if known:
            self._walk.origin(index)
        if delta.is_moving(self._jvm, index):
            what = f"the Delta table {index.path().toString()}, whose version could not be fixed,"
            self._walk.give_up_on(what, index)
        listed = [
            listed_files(self._jvm, index, one, fixed=known, text=self.printed.get(id(one)))
            for one in places
        ]
        self.inputs += listed
        self._listed([one.entries for one in listed])

    def _listed(self, files: Sequence[Sequence[str]]) -> None:
        """Append the files that are read at one or several places."""
        self._walk.tokens.append(f"files, list {len(self.files)}")
        self.files.append("\n\n".join("\n".join(entries) for entries in files))

    def _local(self, node: Any, name: str) -> None:
        """Visit rows of createDataFrame and VALUES in Spark's internal form, digested in the JVM.

        Unlike their text, their serialization distinguishes null from an empty string.
        """
        self._head(node, name)
        self._internal_rows(node, node.data())

    def _result(self, node: Any, name: str) -> None:
        """Visit the rows that a command has returned; the command itself does not count."""
        self._head(node, name)
        self._internal_rows(node, node.rows())

    def _internal_rows(self, node: Any, rows: Any) -> None:
        data = rows.toIndexedSeq()
        self._walk.tokens.append(f"rows, list {len(self.rows)}")
        try:
            digest = self._jvm.bytes_digest(data)
        except JVM_ERRORS:  # a table answers an aggregation by rows of a class of its own
            if data.size() > _FEW_ROWS:
                raise
            digest = self._jvm.bytes_digest(self._jvm.unsafe_rows(node.schema(), data))
        self.rows.append(f"{data.size()} {digest}")

    def _rdd(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._scanned(node, node.rdd())

    def _scanned(self, node: Any, rdd: Any) -> None:
        """Visit an RDD: a stored stage, the rows of a query, or else its chain."""
        number = int(rdd.id())
        stage = self._known.stages.get(number)
        rows = self._known.query(number) if stage is None else None
        if rows is not None:
            self._walk.tokens.append(f"query, list {len(self.rows)}")
            self.rows.append(rows.digest)
            self.stages_below += rows.reads
            self.inputs += rows.inputs
            return
        if stage is None:
            # Spark scans the RDD of a finished plan itself only for a micro-batch
            elsewhere = not micro_batch(self._jvm.context)
            if elsewhere and simple_name(self._jvm.class_name(rdd)) == "SQLExecutionRDD":
                self._walk.give_up(MICRO_BATCH_ELSEWHERE, f"RDD {rdd.id()}")
            kind = "a checkpointed DataFrame" if is_checkpoint(self._jvm, rdd) else "an RDD scan"
            self._chain.visit(rdd, f"{kind} ({self._columns(node)})")
            return
        self._walk.tokens.append(f"stage, list {len(self.stages_below)}")
        self.stages_below.append(stage)

    def _cached(self, node: Any, name: str) -> None:
        """Visit cached rows: they are those of the plan that was cached."""
        self._of_cache(node, node)

    def _of_cache(self, relation: Any, node: Any) -> None:
        """Visit the plan of cached rows in their place.

        Args:
            relation: the InMemoryRelation.
            node: the operator whose columns they are.
        """
        builder = relation.cacheBuilder()
        self.cached.append(builder)
        plan, why = cached_plan(self._jvm, builder)
        self.conditions.learn(plan)
        outer, inner = items(relation.output()), items(plan.output())
        with self._walk.numbers.of_its_own(self._number(builder)):
            self._walk.same_columns(outer, inner)
            self._walk.visit(plan)
            self._walk.same_columns(outer, inner)
        if why:
            self._walk.give_up(
                f"a cached DataFrame ({self._columns(node)}), {why},", mend=_UNCACHED
            )

    def _variable(self, node: Any, name: str) -> None:
        """Visit a session variable: it is the value that it had when the query was analyzed."""
        self._walk.tokens.append(name)
        self._walk.visit(node.varDef().currentValue())

    def _number(self, obj: Any) -> int:
        return self._jvm.identity_hash(obj)

    def _unknown_source(self, node: Any, name: str) -> None:
        self._head(node, name)
        self._walk.give_up_on(f"the data source of a {simple_name(name)}", node)

    def _columns(self, node: Any) -> str:
        """Return the first column names, for messages."""
        names = [attribute.name() for attribute in items(node.output().take(4))]
        return ", ".join(names) + (", …" if node.output().size() > len(names) else "")
