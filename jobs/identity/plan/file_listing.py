"""Lists the files of a relation: path, length, modification time and, if known, version tag.

One JVM call prints the whole listing, which is then parsed, because single calls for 5,000 files
take seconds. If a file system prints its status in another form, each file is asked.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from py4j.protocol import Py4JJavaError

from durable_shuffle.jobs.identity.plan.jvm import Jvm, items

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


def file_entries(jvm: Jvm, index: Any, filters: Sequence[Any] = ()) -> list[str]:
    """Return one line per file of a Spark FileIndex, with its partition values, sorted.

    Args:
        filters: Catalyst expressions over the partition columns only. Files of partitions that
            they exclude are left out.
    """
    none = jvm.no_filters()
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
        for one in items(partition.files()):
            length, mtime = int(one.getLen()), int(one.getModificationTime())
            yield repr((values, one.getPath().toString(), length, mtime))
