"""Apache Iceberg tables, by reflection over the user's own Iceberg jar.

A query reads an Iceberg table through a scan of one snapshot. The files that the pruned scan reads,
with the delete files that belong to them, decide the rows; Iceberg never changes a file. The
table's schema, with the ids of its fields, says how files become columns. So neither the snapshot
nor the branch nor the name counts: an append elsewhere changes nothing.

Up to Iceberg 1.10 a table object in a plan follows the table. `at_one_version` makes it a table of
one metadata file, so that the files that were compared are the files that are read. Since 1.11 it
holds its snapshot itself. But since 4.1 Spark loads a table again for each plan, unless the plan
does not say from which catalog it comes.
"""

from collections.abc import Iterator, Sequence, Set
from typing import Any

from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS, Jvm, UnknownInternalsError

TABLE = "org.apache.iceberg.spark.source.SparkTable"
SCAN = "org.apache.iceberg.spark.source.SparkBatchQueryScan"
PARTITION = "org.apache.iceberg.spark.source.SparkInputPartition"
_METADATA_TABLE = "org.apache.iceberg.BaseMetadataTable"
_STATIC = "org.apache.iceberg.StaticTableOperations"
_PUSH = "org.apache.spark.sql.execution.datasources.v2.PushDownUtils"
_TASK = "BaseFileScanTask{"
_LINEAGE = ("_row_id", "_last_updated_sequence_number")
"""Columns whose values come from the commit that added a file, not from the file."""
_HOLDS_SNAPSHOT = "timeTravel"
"""Field of tables that hold their snapshot."""
_VERSIONS = (_HOLDS_SNAPSHOT, "snapshotId", "branch", "tag", "asOfTimestamp")
"""Fields of tables and of their scans that say which version is read."""


def is_moving(jvm: Jvm, relation: Any) -> bool:
    """Return whether an Iceberg table of a plan follows the commits of other writers.

    Args:
        relation: a DataSourceV2Relation of any source.
    """
    if jvm.class_name(relation.table()) != TABLE:
        return False
    return bool(relation.catalog().isDefined()) or _follows(jvm, relation.table())


def _follows(jvm: Jvm, table: Any) -> bool:
    if jvm.has_field(table, _HOLDS_SNAPSHOT) and not is_metadata(jvm, table):
        return False
    return not jvm.is_a(_base(jvm, table).operations(), _STATIC)


def is_metadata(jvm: Jvm, table: Any) -> bool:
    """Return whether this is a metadata table, such as `db.t.files` or `db.t.history`."""
    return jvm.is_a(table.table(), _METADATA_TABLE)


def at_one_version(jvm: Jvm, table: Any) -> Any:
    """Return the table as it is now: one that does not follow later commits.

    Args:
        table: of the class `TABLE`.

    Raises:
        Py4JError: this Iceberg's classes are built in another way.
    """
    if not _follows(jvm, table):
        return table
    iceberg = jvm.root.org.apache.iceberg
    inner, base = table.table(), _base(jvm, table)
    metadata = is_metadata(jvm, table)
    fixed = iceberg.StaticTableOperations(_metadata_file(base), base.io())
    travels = jvm.has_field(table, _HOLDS_SNAPSHOT) and jvm.field(table, _HOLDS_SNAPSHOT)
    if metadata and travels is not None and travels is not False:
        raise UnknownInternalsError("a metadata table of an earlier time")
    if metadata:
        kind = jvm.call(inner, "metadataTableType")
        made = iceberg.MetadataTableUtils.createMetadataTableInstance(
            fixed, base.name(), inner.name(), kind
        )
    else:
        made = iceberg.BaseTable(fixed, base.name())
    source = iceberg.spark.source.SparkTable
    if jvm.has_field(table, _HOLDS_SNAPSHOT):
        return source(made)
    if table.snapshotId() is not None:
        return source(made, table.snapshotId(), False)  # noqa: FBT003
    if table.branch() is not None:
        return source(made, table.branch(), False)  # noqa: FBT003
    return source(made, False)  # noqa: FBT003


def table_tokens(jvm: Jvm, table: Any) -> list[str]:
    """Return what decides how a table's files become rows."""
    inner = table.table()
    if is_metadata(jvm, table):
        now = _base(jvm, table).operations().current()
        # a table that is made again at the same place counts its metadata files from one
        when = now.metadataFileLocation(), now.uuid(), now.lastUpdatedMillis()
        return [str(inner.name()), *map(str, when), *versions(jvm, table)]
    mapping = dict(inner.properties()).get("schema.name-mapping.default", "")
    schema = jvm.member(table, "snapshotSchema", "schema")
    return [str(schema.toString()), str(table.schema().json()), str(mapping)]


def versions(jvm: Jvm, obj: Any) -> list[str]:
    """Return what a table or a scan says of the version that it reads."""
    found = {name: jvm.field(obj, name) for name in _VERSIONS if jvm.has_field(obj, name)}
    return [f"{name} {version}" for name, version in found.items()]


def scan_of(jvm: Jvm, table: Any, options: Any, conditions: Sequence[Any]) -> Any:
    """Return a scan of a table that leaves out the files that the conditions exclude.

    Args:
        options: those of the relation.
        conditions: Catalyst expressions over the table's columns.
    """
    builder = table.newScanBuilder(options)
    if conditions:
        push = jvm.module(_PUSH).pushFilters
        filters = jvm.to_seq(list(conditions))
        try:
            push(builder, filters)
        except JVM_ERRORS:
            push(builder, filters, jvm.root.scala.Option.empty())
    return builder.build()


def scanned_files(jvm: Jvm, scan: Any, columns: Set[str]) -> list[str]:
    """Return one line per file of a scan, with its delete files and what it is asked for, sorted.

    Args:
        scan: of the class `SCAN`.
        columns: names of the columns that the query may use.
    """
    tasks = jvm.call(scan, "tasks")
    if not columns.isdisjoint(_LINEAGE):
        return sorted(f"{t.toString()} {sorted(_deletes(t))} {_added(t)}" for t in tasks.toArray())
    together = jvm.root.org.apache.iceberg.BaseScanTaskGroup(tasks)
    if int(together.filesCount()) > int(tasks.size()):  # there are delete files
        return sorted(f"{task.toString()} {sorted(_deletes(task))}" for task in tasks.toArray())
    text = str(tasks.toString()).removeprefix(f"[{_TASK}").removesuffix("]")
    found = text.split(f", {_TASK}") if text else []
    if len(found) != int(tasks.size()):  # printed in another form
        found = [str(task.toString()) for task in tasks.toArray()]
    return sorted(found)


def filters_of(jvm: Jvm, scan: Any) -> str:
    """Return the filters that were pushed into a scan, as text."""
    return str(jvm.member(scan, "filters", "filterExpressions").toString())


def split_text(jvm: Jvm, partition: Any) -> str:
    """Return the pieces of files that an input partition of the class `PARTITION` reads."""
    tasks = jvm.call(partition, "taskGroup").tasks()
    text = str(tasks.toString())
    if "SplitScanTask@" not in text:  # whole files
        return text
    pieces = [(t.file().location(), t.start(), t.length()) for t in tasks.toArray()]
    return repr([tuple(map(str, piece)) for piece in pieces])


def _base(jvm: Jvm, table: Any) -> Any:
    """Return Iceberg's table; for a metadata table the one that it describes."""
    inner = table.table()
    return jvm.call(inner, "table") if is_metadata(jvm, table) else inner


def _metadata_file(base: Any) -> str:
    return str(base.operations().current().metadataFileLocation())


def _added(task: Any) -> str:
    """Return what the commit that added a file says of it."""
    file = task.file()
    return f"{file.dataSequenceNumber()} {file.firstRowId()}"


def _deletes(task: Any) -> Iterator[str]:
    for delete in task.deletes().toArray():
        facts = (delete.location(), delete.contentOffset(), delete.recordCount(), delete.content())
        yield " ".join(map(str, facts))
