"""One stage, checked from its logs down to the last byte of its segments.

Strategy: first all control records, then the index, then the segments of every COMMIT that counts;
nothing found ends the walk. What counts is what SEAL names; without a SEAL, the first COMMIT of
each producer. A finding is believed only if the stage was not released meanwhile.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import schema_from_bytes
from durable_shuffle.serialization.errors import DurableShuffleError, ErrorKind
from durable_shuffle.shuffle.index import build_index, content_tag
from durable_shuffle.shuffle.layout import StagePath
from durable_shuffle.shuffle.producer_log import Committed
from durable_shuffle.shuffle.records import (
    PRODUCER_RECORDS,
    STAGE_RECORDS,
    Abort,
    Commit,
    Describe,
    Release,
    Seal,
)
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.slot_log import SlotLog
from durable_shuffle.shuffle.stage import StageHandle
from durable_shuffle.shuffle.storage import Storage
from durable_shuffle.shuffle.verify_commit import check_commit
from durable_shuffle.shuffle.verify_index import check_index
from durable_shuffle.shuffle.verify_logs import LogCopy, copy_log, last_slots
from durable_shuffle.shuffle.verify_report import Finding, StageVerdict, finding_of
from durable_shuffle.shuffle.verify_segment import SegmentTask, check_segment

Progress = Callable[[int, int], None]
A = TypeVar("A")
B = TypeVar("B")

_SEGMENTS_AT_ONCE = 4
"""Each is held whole; with the default settings that is at most about 256 MiB."""


@dataclass(slots=True)
class _Found:
    """What is gathered while one stage is walked."""

    objects: int = 0
    checked_bytes: int = 0
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)

    def take(self, copy: "LogCopy[object]") -> None:
        self.objects += copy.objects
        self.checked_bytes += copy.checked_bytes
        self.findings.extend(copy.findings)


def check_stage(
    storage: Storage,
    path: StagePath,
    settings: Settings,
    *,
    released: bool,
    progress: Progress | None = None,
) -> StageVerdict:
    """Check one stage.

    Args:
        released: the job log says so: then only logs are checked.
        progress: called with (bytes of segments checked, bytes of segments in all).
    """
    found = _Found()
    last, problems = last_slots(storage, path.log_prefix)
    found.findings.extend(problems)
    known = max(0, last.get(path.log_prefix, 0))  # slot 0 is DESCRIBE: it must be there
    log = copy_log(SlotLog(storage, path.log_prefix), STAGE_RECORDS, known=known)
    found.take(cast("LogCopy[object]", log))
    describe = cast("Describe | None", log.last(Describe))
    seal = cast("Seal | None", log.last(Seal))
    released = released or log.last(Release) is not None
    found.findings.extend(_check_describe(log.log.key(0), path, describe, log.records.get(0)))
    copies = _copy_producer_logs(storage, path, describe, seal, settings, found)
    if released:
        m = seal.producers if seal else describe.producers if describe else None
        committed = sum(_first_commit(copy) is not None for copy in copies.values())
        return _verdict(path, "released", m, committed, found)
    data = _Found()
    if seal is not None:
        where = log.log.key(next(s for s, r in log.records.items() if r is seal))
        commits = _sealed_commits(where, seal, describe, copies, data)
        _check_index(storage, path, describe, seal, commits, data)
        m = seal.producers
    else:
        commits = {p: c for p, copy in copies.items() if (c := _first_commit(copy)) is not None}
        m = describe.producers if describe else None
    _check_commits(storage, path, describe, m, commits, settings, data, progress)
    if data.findings and not released and _released_since(storage, path, known):
        return _verdict(path, "released", m, len(commits), found)
    found.findings.extend(data.findings)
    found.objects += data.objects
    found.checked_bytes += data.checked_bytes
    found.rows += data.rows
    return _verdict(path, "sealed" if seal else "unsealed", m, len(commits), found)
