"""Lists the files that a query reads: path, length, modification time and, if known, version tag.

A file of a partition that a filter excludes yields no row, so it is not an input of the query. Of
Spark's own file lists only conditions over partition columns alone are used: Spark evaluates them
before it reads a file. A Delta table also excludes files by the statistics of their columns.

One JVM call prints the whole listing, which is then parsed, because single calls for 5,000 files
take seconds. If a file system prints its status in another form, each file is asked.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from durable_shuffle.jobs.identity.plan.conditions import column_ids, over
from durable_shuffle.jobs.identity.plan.delta import is_delta_index
from durable_shuffle.jobs.identity.plan.jvm import JVM_ERRORS, Jvm, items

_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
# Hadoop's FileStatus.toString; an object store's own class adds its tag after or inside it.
# Access time, owner, permission, replication and block size are ignored: not part of the content.
_STATUS = re.compile(
    r"\{path=(?P<path>.*?); isDirectory=false; length=(?P<length>\d+);"
    r".*?; modification_time=(?P<mtime>\d+);(?P<rest>.*?)(?=\{path=|\Z)",
    re.DOTALL,
)
_TAG = re.compile(r"\b(?:eTag|versionId|version)=(\S+)")
_FACTS = re.compile(r",(?:Hash)?Map\(([^()]*)\)\)")
"""What a table format says of a file: its deletion vector, the numbers of its rows."""
_PARTITION = re.compile(r"^PartitionDirectory\((\[.*?\]),\w+\(", re.MULTILINE)
_ONE_FILE = "FileStatusWithMetadata("
_MTIME = "; modification_time="


def is_file_relation(jvm: Jvm, relation: Any) -> bool:
    """Return whether a relation is Spark's own one of files, or Delta's, which inherits from it."""
    if jvm.class_name(relation) == _RELATION:
        return True
    return jvm.is_a(relation, _RELATION) and is_delta_index(jvm.class_name(relation.location()))


def file_entries(jvm: Jvm, index: Any, filters: Sequence[Any] = ()) -> list[str]:
    """Return one line per file of a Spark FileIndex, with its partition values, sorted.

    Args:
        filters: Catalyst expressions, as `usable` returns them. Files that they exclude are left
            out.
    """
    none = jvm.to_seq([])
    try:
        partitions = index.listFiles(jvm.to_seq(filters), none)
    except JVM_ERRORS:  # a filter fails for a partition's value: list all files
        partitions = index.listFiles(none, none)
    text = str(partitions.mkString("\n"))
    entries = list(_parsed(text))
    whole = len(entries) == text.count(_MTIME) == text.count(_ONE_FILE)
    if not whole or _is_ambiguous(index, _PARTITION.findall(text)):
        entries = list(_asked(partitions, index.partitionSchema()))
    return sorted(entries)


def usable(jvm: Jvm, leaf: Any, conditions: Sequence[Any]) -> list[Any]:
    """Return the conditions by which a scan of files leaves files out.

    Args:
        leaf: a scan of files, logical or physical, with `output` and `relation`.
        conditions: conditions that all rows of the scan fulfil; other ones are dropped.
    """
    relation = leaf.relation()
    names = set(map(str, relation.partitionSchema().fieldNames()))
    if is_delta_index(jvm.class_name(relation.location())):
        names |= set(map(str, relation.dataSchema().fieldNames()))
    if not names:
        return []
    return over(jvm, conditions, column_ids(leaf, tuple(names)))


def _parsed(text: str) -> Iterator[str]:
    starts = list(_PARTITION.finditer(text))
    ends = [*(start.start() for start in starts[1:]), len(text)]
    for start, end in zip(starts, ends, strict=False):  # no partition: no start
        for m in _STATUS.finditer(text, start.end(), end):
            tags = _TAG.findall(m["rest"])
            facts = _FACTS.search(m["rest"])
            if facts is None:
                return  # printed in another form
            if facts[1]:
                tags.append(", ".join(sorted(facts[1].split(", "))))
            yield repr((start[1], m["path"], int(m["length"]), int(m["mtime"]), *tags))


def _is_ambiguous(index: Any, printed: Sequence[str]) -> bool:
    """Return whether printed partition values may be those of other partitions, too."""
    if any("null" in values for values in printed):
        return True
    commas = max((values.count(",") for values in printed), default=0)
    return commas > 0 and commas >= int(index.partitionSchema().size())


def _asked(partitions: Any, schema: Any) -> Iterator[str]:
    types = [field.dataType() for field in schema.fields()]
    for partition in items(partitions):
        row = partition.values()
        found = [None if row.isNullAt(i) else str(row.get(i, t)) for i, t in enumerate(types)]
        values = repr(found)
        for file in items(partition.files()):
            length, mtime = int(file.getLen()), int(file.getModificationTime())
            facts = [str(f.toString()) for f in items(file.metadata().toSeq())]
            yield repr((values, file.getPath().toString(), length, mtime, *sorted(facts)))
