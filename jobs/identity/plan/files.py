"""Lists the files that a query reads: path, length, modification time and, if known, version tag.

Of a file on this machine, its number in the file system (inode) and the time of its last change
(ctime) count as well. A copy that is put back with its old time, or a link that leads elsewhere,
differs in these. A table format that never changes a file does without.

A file of a partition that a filter excludes yields no row, so it is not an input of the query. Of
Spark's own file lists only conditions over partition columns alone are used: Spark evaluates them
before it reads a file. A Delta table also excludes files by the statistics of their columns.

One JVM call prints the whole listing, which is then parsed, because single calls for 5,000 files
take seconds. If a file system prints its status in another form, each file is asked.
"""

import os
import re
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from durable_shuffle.jobs.identity.jvm.calls import JVM_ERRORS, Jvm, items, to_seq
from durable_shuffle.jobs.identity.plan.conditions import column_ids, over
from durable_shuffle.jobs.identity.tables.delta import is_delta_index
from durable_shuffle.jobs.in_one_call import in_one_call, standing_for

_FILE_INDEXES = (
    "org.apache.spark.sql.execution.datasources.",
    "org.apache.spark.sql.execution.streaming.",  # files written by a stream, listed by its log
)
FILE_RELATION = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
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
_LOCAL = "file:"
_ASKED_ONE_BY_ONE = 2
"""With more files in a folder, the folder is listed."""
_AT_ONCE = 16


def is_file_relation(jvm: Jvm, relation: Any) -> bool:
    """Return whether a relation is Spark's own one of files, or Delta's, which inherits from it."""
    if jvm.class_name(relation) == FILE_RELATION:
        return True
    return jvm.is_a(relation, FILE_RELATION) and is_delta_index(jvm.class_name(relation.location()))


def is_known_index(jvm: Jvm, index: Any) -> bool:
    """Return whether a FileIndex is Spark's own or Delta's; what another one lists is not known."""
    name = jvm.class_name(index)
    return is_delta_index(name) or name.startswith(_FILE_INDEXES)


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """The files that one place of a plan reads, as its identity names them."""

    jvm: Jvm
    index: Any
    """A Spark FileIndex. It may keep the first listing for as long as the DataFrame lives."""
    filters: Sequence[Any]
    """Catalyst expressions, as `usable` returns them. Files that they exclude are left out."""
    fixed: bool
    """Whether the format of the table never changes a file."""
    entries: tuple[str, ...] = ()
    """One line per file, with its partition values, sorted."""


Place = tuple[Any, Sequence[Any]]
"""A Spark FileIndex, and the filters of `ListedFiles`."""


def first_changed(listings: Sequence[ListedFiles]) -> str:
    """Return the path of a file that is no longer what its entry says; "" if all are.

    The storage is asked again, about all listings side by side, not the indexes alone: an index may
    keep the first listing for as long as the DataFrame lives.
    """
    wanted = dict[tuple[int, str], tuple[int, int]]()
    listings = [one for one in listings if not one.fixed]
    places = [(one.index, one.filters) for one in listings]
    texts = printed_listings(listings[0].jvm, places) if places else []
    for number, (one, text) in enumerate(zip(listings, texts, strict=True)):
        listed = file_entries(one.jvm, one.index, one.filters, text=text)
        if differing := set(one.entries).symmetric_difference(listed):
            return str(literal_eval(min(differing))[1])
        for entry in one.entries:
            _, path, length, mtime, *_ = literal_eval(entry)
            if not _is_here(path, length, mtime):
                wanted[number, path] = length, mtime
    now = _asked_again(listings, sorted(wanted))
    return next((path for (at, path), facts in wanted.items() if now.get((at, path)) != facts), "")


def printed_listings(jvm: Jvm, places: Sequence[Place]) -> list[str | None]:
    """Return what `file_entries` takes as text, for several indexes in one call.

    None for each where one of them fails, which is then asked alone.
    """
    if not places:
        return []

    def printed(root: Any, *indexes: Any) -> tuple[Any, ...]:
        each = zip(places, indexes, strict=True)
        return tuple(_printed(filters, root, index) for (_, filters), index in each)

    try:
        return list(in_one_call(jvm.root, printed, *(index for index, _ in places)))
    except JVM_ERRORS:
        return [None] * len(places)


def _printed(filters: Sequence[Any], root: Any, index: Any) -> Any:
    return _partitions(filters, root, index).mkString("\n")


def listed_files(
    jvm: Jvm,
    index: Any,
    filters: Sequence[Any] = (),
    *,
    fixed: bool = False,
    text: str | None = None,
) -> ListedFiles:
    """Return the files of a Spark FileIndex; the arguments are those of `ListedFiles`.

    Args:
        text: from `printed_listings`; None to ask now.
    """
    entries = file_entries(jvm, index, filters, fixed=fixed, text=text)
    return ListedFiles(jvm, index, filters, fixed, tuple(entries))


def file_entries(
    jvm: Jvm,
    index: Any,
    filters: Sequence[Any] = (),
    *,
    fixed: bool = False,
    text: str | None = None,
) -> list[str]:
    """Return the entries of `ListedFiles`; the arguments are those of `listed_files`."""
    if text is None:
        try:
            text = str(in_one_call(jvm.root, partial(_printed, filters), index))
        except JVM_ERRORS:  # a filter fails for a partition's value: list all files
            filters = ()
            text = str(in_one_call(jvm.root, partial(_printed, filters), index))
    entries = list(_parsed(text))
    whole = len(entries) == text.count(_MTIME) == text.count(_ONE_FILE)
    if not whole or _is_ambiguous(index, _PARTITION.findall(text)):
        partitions = in_one_call(jvm.root, partial(_partitions, filters), index)
        entries = list(_asked(partitions, index.partitionSchema()))
    return sorted(
        repr(entry if fixed else (*entry, *_of_this_machine(entry[1]))) for entry in entries
    )


def _partitions(filters: Sequence[Any], jvm: Any, index: Any) -> Any:
    conditions = to_seq(jvm, [standing_for(jvm, one) for one in filters])
    return index.listFiles(conditions, to_seq(jvm, []))


def _of_this_machine(path: str) -> tuple[int, ...]:
    """Return inode and ctime of a file, () if it is on another storage or gone."""
    found = _stat(path)
    return () if found is None else (found.st_ino, found.st_ctime_ns)


def _is_here(path: str, length: int, mtime: int) -> bool:
    """Return whether a file is on this machine with this length and time, as Hadoop says them."""
    found = _stat(path)
    return found is not None and (found.st_size, found.st_mtime_ns // 10**6) == (length, mtime)


def _stat(path: str) -> os.stat_result | None:
    if not path.startswith(_LOCAL):
        return None
    try:
        return Path(path.removeprefix(_LOCAL)).stat()
    except (OSError, ValueError):
        return None


def _asked_again(
    listings: Sequence[ListedFiles], files: Sequence[tuple[int, str]]
) -> Mapping[tuple[int, str], tuple[int, int]]:
    """Return length and time of files as the storage says now; those that are gone lack.

    Args:
        files: each is the number of its listing, and its path.
    """
    confs = {number: _hadoop_conf(listings[number]) for number in {number for number, _ in files}}
    folders = dict[tuple[int, str], list[str]]()
    for number, path in files:
        folders.setdefault((number, path.rpartition("/")[0]), []).append(path)

    def folder(item: tuple[tuple[int, str], list[str]]) -> dict[tuple[int, str], tuple[int, int]]:
        (number, at), paths = item
        root, conf = listings[number].jvm.root, confs[number]
        found = dict[str, tuple[int, int]]()
        if len(paths) > _ASKED_ONE_BY_ONE:
            with suppress(*JVM_ERRORS):  # its files may be asked even so
                found |= _facts_of(str(in_one_call(root, partial(_listing, at), conf)))
        for path in paths:
            if path not in found:
                with suppress(*JVM_ERRORS):
                    found[path] = in_one_call(root, partial(_length_and_time, path), conf)
        return {(number, path): facts for path, facts in found.items()}

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        each = list(pool.map(folder, folders.items()))
    return {file: facts for of_folder in each for file, facts in of_folder.items()}


def _hadoop_conf(listing: ListedFiles) -> Any:
    """Return the Hadoop settings of a read, with its options where the index has them."""
    try:
        return in_one_call(listing.jvm.root, lambda _, index: index.hadoopConf(), listing.index)
    except JVM_ERRORS:
        return listing.jvm.context._jsc.hadoopConfiguration()  # noqa: SLF001


def _listing(folder: str, jvm: Any, conf: Any) -> Any:
    at = getattr(jvm, "org.apache.hadoop.fs.Path")(folder)
    listed = at.getFileSystem(conf).listStatus(at)
    return getattr(jvm, "scala.runtime.ScalaRunTime").stringOf(listed)


def _length_and_time(path: str, jvm: Any, conf: Any) -> tuple[Any, Any]:
    at = getattr(jvm, "org.apache.hadoop.fs.Path")(path)
    status = at.getFileSystem(conf).getFileStatus(at)
    return status.getLen(), status.getModificationTime()


def _facts_of(printed: str) -> dict[str, tuple[int, int]]:
    """Return length and time of each file in a printed listing."""
    found = _STATUS.finditer(printed)
    return {m["path"]: (int(m["length"]), int(m["mtime"])) for m in found}


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


def _parsed(text: str) -> Iterator[tuple[Any, ...]]:
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
            yield start[1], m["path"], int(m["length"]), int(m["mtime"]), *tags


def _is_ambiguous(index: Any, printed: Sequence[str]) -> bool:
    """Return whether printed partition values may be those of other partitions, too."""
    if any("null" in values for values in printed):
        return True
    commas = max((values.count(",") for values in printed), default=0)
    return commas > 0 and commas >= int(index.partitionSchema().size())


def _asked(partitions: Any, schema: Any) -> Iterator[tuple[Any, ...]]:
    types = [field.dataType() for field in schema.fields()]
    for partition in items(partitions):
        row = partition.values()
        found = [None if row.isNullAt(i) else str(row.get(i, t)) for i, t in enumerate(types)]
        values = repr(found)
        for file in items(partition.files()):
            length, mtime = int(file.getLen()), int(file.getModificationTime())
            facts = [str(f.toString()) for f in items(file.metadata().toSeq())]
            yield values, str(file.getPath().toString()), length, mtime, *sorted(facts)
