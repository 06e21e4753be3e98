"""Lists the files that a query reads: path, length, modification time and, if known, version tag.

A file of a partition that a filter excludes yields no row, so it is not an input of the query. Only
conditions over partition columns alone are used: Spark evaluates them before it reads a file.

One JVM call prints the whole listing, which is then parsed, because single calls for 5,000 files
take seconds. If a file system prints its status in another form, each file is asked.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError

from durable_shuffle.jobs.identity.plan.jvm import Jvm, every, items, simple_name

# Hadoop's FileStatus.toString; an object store's own class adds its tag after or inside it.
# Access time, owner, permission, replication and block size are ignored: not part of the content.
_STATUS = re.compile(
    r"\{path=(?P<path>.*?); isDirectory=false; length=(?P<length>\d+);"
    r".*?; modification_time=(?P<mtime>\d+);(?P<rest>.*?)(?=\{path=|\Z)",
    re.DOTALL,
)
_TAG = re.compile(r"\b(?:eTag|versionId|version)=(\S+)")
_PARTITION = re.compile(r"^PartitionDirectory\((\[.*?\]),\w+\(", re.MULTILINE)
_ONE_FILE = "FileStatusWithMetadata("
_MTIME = "; modification_time="
_NAMES = frozenset({"SubqueryAlias", "View"})
_PLAN_EXPRESSION = "org.apache.spark.sql.catalyst.expressions.PlanExpression"
_UNKNOWN = frozenset({"PythonUDF", "ScalaUDF", "CallMethodViaReflection"})


def file_entries(jvm: Jvm, index: Any, filters: Sequence[Any] = ()) -> list[str]:
    """Return one line per file of a Spark FileIndex, with its partition values, sorted.

    Args:
        filters: Catalyst expressions over the partition columns only. Files of partitions that
            they exclude are left out.
    """
    none = jvm.to_seq([])
    try:
        partitions = index.listFiles(jvm.to_seq(filters), none)
    except Py4JJavaError:  # a filter fails for a partition's value: list all files
        partitions = index.listFiles(none, none)
    text = str(partitions.mkString("\n"))
    entries = list(_parsed(text))
    if len(entries) != text.count(_MTIME) or len(entries) != text.count(_ONE_FILE):
        entries = list(_asked(partitions))
    return sorted(entries)


def _parsed(text: str) -> Iterator[str]:
    starts = list(_PARTITION.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=True):
        for m in _STATUS.finditer(text, start.end(), end):
            tags = _TAG.findall(m["rest"])
            yield repr((start[1], m["path"], int(m["length"]), int(m["mtime"]), *tags))


def _asked(partitions: Any) -> Iterator[str]:
    for partition in items(partitions):
        values = partition.values().toString()
        for file in items(partition.files()):
            length, mtime = int(file.getLen()), int(file.getModificationTime())
            yield repr((values, file.getPath().toString(), length, mtime))


def filtered_leaf(jvm: Jvm, node: Any) -> tuple[Any, list[Any]]:
    """Return the leaf below a chain of filters and projections, and the conditions of the chain.

    The leaf is None if another operator or a non-deterministic expression is in between.
    """
    conditions: list[Any] = []
    while True:
        name = simple_name(jvm.class_name(node))
        if name == "Filter":
            if not node.condition().deterministic():
                return None, []
            conditions += _conjuncts(jvm, node.condition())
        elif name == "Project":
            columns = items(node.projectList())
            if not all(column.deterministic() and _plain(jvm, column) for column in columns):
                return None, []
        elif name == "LogicalRelation":
            return node, conditions
        elif name not in _NAMES:
            return None, []
        node = node.child()


def over_partitions(jvm: Jvm, leaf: Any, conditions: Sequence[Any]) -> list[Any]:
    """Return the conditions that use only partition columns of a leaf.

    Args:
        leaf: a scan of files, logical or physical, with `output` and `relation`.
    """
    names = set(map(str, leaf.relation().partitionSchema().fieldNames()))
    ids = {str(item.exprId().toString()) for item in items(leaf.output()) if item.name() in names}
    return [item for item in conditions if _is_over(jvm, item, ids)]


def _is_over(jvm: Jvm, condition: Any, ids: set[str]) -> bool:
    used = {
        str(attribute.exprId().toString()) for attribute in items(condition.references().toSeq())
    }
    return bool(used) and used <= ids and bool(condition.deterministic()) and _plain(jvm, condition)


def _plain(jvm: Jvm, expression: Any) -> bool:
    """Return whether an expression contains neither a subquery nor user code."""
    return not any(
        jvm.is_a(node, _PLAN_EXPRESSION) or simple_name(jvm.class_name(node)) in _UNKNOWN
        for node in every(expression)
    )


def _conjuncts(jvm: Jvm, condition: Any) -> list[Any]:
    if simple_name(jvm.class_name(condition)) != "And":
        return [condition]
    return _conjuncts(jvm, condition.left()) + _conjuncts(jvm, condition.right())
