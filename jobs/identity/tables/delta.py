"""Delta Lake tables, by reflection over the user's own Delta jar.

A query reads a Delta table through a list of files of one version of the table. The files that the
pruned scan reads, with their deletion vectors, decide the rows. The schema maps columns to names
inside the files; the plan shows it without these names, and the file format has them. So neither
the table's version nor its name counts: an append elsewhere changes nothing.

An ordinary read takes the newest version each time that Spark plans it. `at_one_version` makes it
a read of one version, so that the files that were compared are the files that are read.
"""

from collections.abc import Mapping
from typing import Any

from durable_shuffle.jobs.identity.jvm.calls import Jvm
from durable_shuffle.jobs.spark_versions import argument_names

_LOG = "org.apache.spark.sql.delta.files.TahoeLogFileIndex"
_PREPARED = "org.apache.spark.sql.delta.stats.PreparedDeltaFileIndex"
CHANGE_FEED = "org.apache.spark.sql.delta.commands.cdc.CDCReader$DeltaCDFRelation"
_SNAPSHOT, _FIXED = "snapshotAtAnalysis", "isTimeTravelQuery"
_TIME_TRAVEL = frozenset({"versionasof", "timestampasof"})


def is_delta_index(class_name: str) -> bool:
    """Return whether a file index lists the files of a Delta table in a way that is known."""
    return class_name in (_LOG, _PREPARED)


def columns_in_files(file_format: Any) -> list[str]:
    """Return how a file format of Delta finds the columns of a table in its files.

    A column that was dropped and added again, or has exchanged its name with another, has the name
    and the type that it had, and is another column in the files.

    Raises:
        Py4JError: this Delta's file format is built in another way.
    """
    mode, schema = file_format.columnMappingMode(), file_format.referenceSchema()
    return [str(mode.name()), str(schema.json())]


def without_version(options: Mapping[str, str]) -> dict[str, str]:
    """Return a reader's options without the version that is read: its files are compared."""
    return {key: value for key, value in options.items() if key.lower() not in _TIME_TRAVEL}


def is_moving(jvm: Jvm, index: Any) -> bool:
    """Return whether a file index lists the newest version of a Delta table, whichever that is."""
    return jvm.class_name(index) == _LOG and not index.isTimeTravelQuery()


def table_of(index: Any) -> str:
    """Return what distinguishes the table of a Delta file index from other tables."""
    return str(index.deltaLog().compositeId().toString())


def scanned_version(jvm: Jvm, index: Any) -> tuple[str, Any]:
    """Return the table and the version of it that a planned scan reads; ("", None) if unknown."""
    if jvm.class_name(index) == _PREPARED:
        return table_of(index), index.preparedScan().scannedSnapshot()
    return "", None


def at_one_version(root: Any, index: Any, snapshots: dict[str, Any]) -> Any:
    """Return a file index that always lists the table's newest version of now.

    Args:
        root: a session's `_jvm`.
        index: one for which `is_moving` holds.
        snapshots: versions that this plan reads, by table; all reads of a table have the same.

    Raises:
        Py4JError: this Delta's index is built in another way.
    """
    table = table_of(index)
    if table not in snapshots:
        snapshots[table] = index.getSnapshot()
    fixed = {_SNAPSHOT: snapshots[table], _FIXED: True}
    names = argument_names(root, index)
    return index.copy(*(fixed.get(name, index.productElement(i)) for i, name in enumerate(names)))
