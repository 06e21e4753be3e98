"""Check one stage, from its logs down to the last byte of its segments.

Strategy: check all control records, then the index, then the segments of every COMMIT that counts.
A finding does not stop the walk. The COMMITs that count are those that SEAL and the REPLACEs after
it name. Without a SEAL, each producer's first COMMIT that was not aborted before counts. Of log
producers, every APPEND that was not released counts. Damage to data is reported only if nothing was
released meanwhile.

Memory grows with M + R, not with M x R: extents of large stages are left out of the records that
are held, and read again, a few producers at a time, to be checked.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.serialization.arrow_schemas import later_schema
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.serialization.frames import FrameKind
from durable_shuffle.serialization.msgpack_codec import PAIR_CODEC
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.words import growing_status, status_of
from durable_shuffle.shuffle.log.appender_log import APPENDER_RECORDS, Append, End
from durable_shuffle.shuffle.log.appender_reads import gone_of
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.producer_log import CommittedAttempt, producer_state
from durable_shuffle.shuffle.log.records import (
    PRODUCER_RECORDS,
    STAGE_RECORDS,
    Abort,
    Commit,
    Describe,
    Release,
    ReleaseUpto,
    Seal,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, StageState, numbers, with_record
from durable_shuffle.shuffle.log.typed_log import AnyRecord
from durable_shuffle.shuffle.seal.index import content_tag
from durable_shuffle.shuffle.seal.transpose import by_subpartition
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.compaction import check_compaction
from durable_shuffle.shuffle.verify.counting import appends, light, whole_appends, whole_commits
from durable_shuffle.shuffle.verify.ends import LostEnds, list_indexes, lost_ends
from durable_shuffle.shuffle.verify.index import (
    StoredIndex,
    check_commit,
    check_index,
    compare_index,
)
from durable_shuffle.shuffle.verify.logs import (
    Decoder,
    LogCopy,
    copy_log,
    last_slots,
    listed_slots,
    repeated,
)
from durable_shuffle.shuffle.verify.report import Finding, StageVerdict, damage, finding_of
from durable_shuffle.shuffle.verify.segment import SegmentTask, check_segments

OnProgress = Callable[[int, int], None]


@dataclass(slots=True)
class _Tally:
    objects: int = 0
    checked_bytes: int = 0
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, objects: int, checked_bytes: int, findings: tuple[Finding, ...]) -> None:
        self.objects += objects
        self.checked_bytes += checked_bytes
        self.findings.extend(findings)

    def differs(self, key: str, what: str, expected: object, actual: object) -> None:
        if expected != actual:
            self.findings.append(damage(key, f"{what} {expected}", f"{actual}"))


def check_stage(
    storage: Storage,
    path: StagePath,
    settings: Settings,
    *,
    released: bool,
    progress: OnProgress | None = None,
    now: float = math.inf,
) -> StageVerdict:
    """Check one stage.

    Args:
        now: seconds since 1970, by which what a driver is writing is told from what one left;
            infinite where none can be at work.
        released: whether the job log says that the stage was released; then only its logs are
            checked.
        progress: called with (bytes of segments checked, bytes of all segments).
    """
    walk = StageWalk(storage, path, settings, now)
    if not released and walk.state.release is None:
        walk.check_data(progress or _no_progress)
        if not walk.data.findings or not _released_since(storage, path, walk.upto):
            return walk.verdict()
    return walk.verdict(released=True)


class StageWalk:
    """The walk through one stage. The constructor reads and checks the control records;
    `check_data` checks the data."""

    state: StageState
    """The state of the stage by the records of its log that can be read."""
    copies: dict[int, LogCopy[Any]]
    """The producers' logs."""
    ends: LostEnds
    """Records that other objects prove but the logs do not hold. The findings of the data include
    them."""
    commits: dict[int, CommittedAttempt]
    """Each COMMIT that counts and can be read, without extents if they were left out."""

    def __init__(
        self, storage: Storage, path: StagePath, settings: Settings, now: float = math.inf
    ) -> None:
        self.storage, self.path, self._settings, self._now = storage, path, settings, now
        self.logs, self.data = _Tally(), _Tally()
        self._indexes, unlisted = list_indexes(storage, path)  # before the logs that name them
        self.logs.add(0, 0, unlisted)
        self.ends = LostEnds()
        last, problems = last_slots(storage, path.log_prefix)
        self.logs.add(0, 0, problems)
        # slot 0, DESCRIBE, must exist: the job log names no stage without one
        known = last.get(path.log_prefix, 0)
        log = copy_log(SlotLog(storage, path.log_prefix), STAGE_RECORDS, known=known)
        self.logs.add(log.objects, log.checked_bytes, (*log.findings, *repeated(log)))
        self._log, self._key = log, log.log.key
        self.describe: Describe | None = None
        self.state = StageState()
        for slot, record in log.records.items():
            try:
                state = replace(self.state, next_slot=slot)
                self.state = with_record(state, record, self._key(slot))
            except DurableShuffleError as error:
                expected = "a record that fits those before it"
                self.logs.findings.append(finding_of(error, self._key(slot), expected))
            if isinstance(record, Describe) and slot == 0:
                self.describe = record
            elif isinstance(record, Describe):
                self.logs.differs(self._key(slot), "slot of DESCRIBE", 0, slot)
        self.stage = StageHandle(storage, path, self.describe) if self.describe else None
        self._schema: pa.Schema | None = None
        self.upto = _upto(self.state.upto)
        self._seal, self._seal_slot = self.state.replaced, self.state.seal_slot
        self._check_description(slot_0=0 in log.records)
        self._producers = self.describe.producers if self.describe else None
        self._codec: Decoder[Any] = PRODUCER_RECORDS
        if self.describe is not None and self.describe.writing == "log":
            self._codec = APPENDER_RECORDS
        elif self.describe is None and self.state.release is not None:
            self._codec = AnyRecord()
        if self._seal is not None:
            self._producers = self._seal.producers
        self.copies = self._copy_producer_logs()
        self.commits = self._counting_commits() if self._codec is PRODUCER_RECORDS else {}

    def verdict(self, *, released: bool = False) -> StageVerdict:
        """Return the findings so far; for a released stage only those of its logs."""
        tallies = (self.logs,) if released else (self.logs, self.data)
        ended = None if released else self._ended()
        if ended is None:
            damaged, sealed = bool(self.state.damaged), self._seal is not None
            status = status_of(released=released, sealed=sealed, damaged=damaged)
        else:
            status = growing_status(ended, self._producers or 0)
        return StageVerdict(
            path=self.path,
            status=status,
            producers=self._producers,
            committed=len(self.commits),
            rows=sum(t.rows for t in tallies),
            objects=sum(t.objects for t in tallies),
            checked_bytes=sum(t.checked_bytes for t in tallies),
            findings=tuple(f for t in tallies for f in t.findings),
            ended=ended,
        )

    def _ended(self) -> int | None:
        if self._codec is not APPENDER_RECORDS:
            return None
        newest = [next(reversed(copy.records.values()), None) for copy in self.copies.values()]
        return sum(isinstance(record, End) and record.mode != "SUSPEND" for record in newest)

    def check_data(self, progress: OnProgress) -> None:
        """Check the COMMITs, the index, the compaction and the segments that count."""
        if self._seal is not None:
            self.commits = self._sealed_commits(self._seal)
        slices = self._by_subpartition()
        if self._seal is not None:
            self._check_index(self._seal, slices)
        self._check_segments(progress)
        if not self.logs.findings:
            self.ends = lost_ends(
                self.path,
                self._indexes,
                self._log,
                self.state,
                self.copies,
                self.commits,
                self._settings,
                self._now,
            )
            self.data.findings.extend(self.ends.findings)
        if self._seal is not None and not self.data.findings and not self.logs.findings:
            key, rows = self._key(self._seal_slot), self._seal.rows
            self.data.differs(key, "rows in frames", rows, self.data.rows)

    def _check_description(self, *, slot_0: bool) -> None:
        key, describe, path = self._key(0), self.describe, self.path
        if describe is None:
            if slot_0 and self.state.release is None:
                self.logs.differs(key, "record", Describe.KIND, "another kind")
            return
        self.logs.differs(
            key,
            "stage",
            (path.name, path.fingerprint, path.incarnation),
            (describe.name, describe.fingerprint, describe.incarnation),
        )
        try:
            self._schema = StageHandle(self.storage, path, describe).schema
        except DurableShuffleError as error:
            self.logs.findings.append(finding_of(error, key, "a readable schema"))

    def _copy_producer_logs(self) -> dict[int, LogCopy[Any]]:
        listed, problems = listed_slots(self.storage, self.path.producers_prefix)
        self.logs.add(0, 0, problems)
        known = dict.fromkeys(range(self._producers or 0), -1)
        if self._seal is not None:
            known.update(enumerate(numbers(self._seal.commit_slots)))
        for prefix, slots in listed.items():
            if (p := self.path.producer_of(prefix)) is not None:
                known[p] = max(known.get(p, -1), *slots)

        def copy(item: tuple[int, int]) -> LogCopy[Any]:
            log = SlotLog(self.storage, self.path.producer_log_prefix(item[0]))
            first = gone_of(deleted, item[0])
            below = sorted(slot for slot in listed.get(log.prefix, ()) if slot < first)
            copied = copy_log(log, self._codec, known=item[1], first=first, below=below)
            return replace(copied, records=light(copied.records, producers=len(known)))

        deleted = numbers(self.state.upto.deleted) if self.state.upto else []
        while True:  # ends: each turn reads from a higher slot on
            with ThreadPoolExecutor(self._settings.control_threads) as pool:
                copies = dict(zip(known, pool.map(copy, known.items()), strict=True))
            if self._codec is not APPENDER_RECORDS or not any(c.gaps for c in copies.values()):
                break
            upto = copy_log(self._log.log, STAGE_RECORDS).last(ReleaseUpto)
            now = numbers(upto.deleted) if isinstance(upto, ReleaseUpto) else []
            if now == deleted:
                break
            deleted = now
        for copied in copies.values():
            self.logs.add(copied.objects, copied.checked_bytes, copied.findings)
        return copies

    def _counting_commits(self) -> dict[int, CommittedAttempt]:
        counting = {p: producer_state(copy.records).counting() for p, copy in self.copies.items()}
        return {p: committed for p, committed in counting.items() if committed is not None}

    def _sealed_commits(self, seal: Seal) -> dict[int, CommittedAttempt]:
        """Return the readable COMMITs that SEAL names, and check that they agree with SEAL."""
        key, tally = self._key(self._seal_slot), self.data
        if self.describe is not None:
            tally.differs(key, "M", self.describe.producers, seal.producers)
        commits = {}
        for p, slot in enumerate(numbers(seal.commit_slots)):
            record = self.copies[p].records.get(slot)
            if record is None:
                continue  # a finding of the producer's log
            where = self.copies[p].log.key(slot)
            if not isinstance(record, Commit):
                tally.differs(where, "record", Commit.KIND, record.KIND)
                continue
            commits[p] = CommittedAttempt(slot, record)
            if isinstance(producer_state(self.copies[p].records).fate(record.record_id), Abort):
                tally.differs(where, "COMMIT", "not aborted before", "aborted before")
            attempt = seal.attempts[16 * p : 16 * p + 16].hex()
            tally.differs(where, "attempt", attempt, record.record_id)
        if len(commits) == seal.producers:
            all_ = [committed.commit for committed in commits.values()]
            tally.differs(key, "rows", seal.rows, sum(c.rows for c in all_))
            tally.differs(key, "memory bytes", seal.memory_bytes, sum(c.memory_bytes for c in all_))
            stored = sum(s.length for c in all_ for s in c.segments)
            tally.differs(key, "data bytes", seal.data_bytes, stored)
        return commits

    def _whole_commits(self) -> Iterator[tuple[int, str, Commit]]:
        return whole_commits(self.copies, self.commits, threads=self._settings.control_threads)

    def _checked_commits(self) -> Iterator[Commit]:
        """Check the COMMITs that count; yield those up to the first finding."""
        try:
            for p, key, commit in self._whole_commits():
                if self._seal is not None:
                    tag = self._seal.content_tags[32 * p : 32 * p + 32].hex()
                    self.data.differs(key, "content tag", tag, content_tag(commit).hex())
                self.data.findings += check_commit(
                    key,
                    commit,
                    producer=p,
                    producers=self._producers,
                    subpartitions=self.stage.subpartitions_of(p) if self.stage else None,
                )
                if not self.data.findings:
                    yield commit
        except DurableShuffleError as error:
            self._cannot_read_again(error)

    def _cannot_read_again(self, error: DurableShuffleError) -> None:
        where, what = self.path.producers_prefix, "records that can be read again"
        self.data.findings.append(finding_of(error, where, what))

    def _by_subpartition(self) -> Iterator[npt.NDArray[np.void]] | None:
        """Check the COMMITs; return the slices of their index, None if some of them are missing."""
        checked = self._checked_commits()
        seal, describe = self._seal, self.describe
        if seal is None or describe is None or len(self.commits) < seal.producers:
            for _ in checked:
                pass
            return None
        slices = by_subpartition(
            checked,
            partitions=describe.partitions,
            producers=seal.producers,
            folder=self._settings.scratch_folder,
        )
        return itertools.chain([next(slices)], slices)  # with the first, all COMMITs were taken

    def _check_index(self, seal: Seal, slices: Iterator[npt.NDArray[np.void]] | None) -> None:
        """Check the index, and the compaction if both it and the COMMITs are intact."""
        partitions = self.describe.partitions if self.describe else None
        findings = self.data.findings
        objects = StoredIndex(self.storage, self.path, seal, partitions, findings)
        if objects.key not in objects:
            return
        findings += list(check_index(objects.key, objects, seal, partitions=partitions))
        if slices is not None and partitions is not None and not findings:
            attempts = b"".join(bytes.fromhex(c.commit.record_id) for c in self.commits.values())
            findings += compare_index(objects.key, objects, slices, attempts, partitions=partitions)
        self.data.add(len(objects.sizes), sum(objects.sizes.values()), ())
        compact = self.state.compact
        if compact is None or slices is None or partitions is None or findings:
            return
        checked = check_compaction(self.storage, self.path, seal, compact, objects, partitions)
        self.data.add(checked.objects, checked.checked_bytes, checked.findings)

    def _check_segments(self, progress: OnProgress) -> None:
        records: list[Commit | Append] = [c.commit for c in self.commits.values()]
        records += [append for _, _, append in appends(self.copies, self.upto)]
        done, total = 0, sum(info.length for record in records for info in record.segments)
        progress(0, total)
        for task, result in check_segments(self.storage, self._segment_tasks()):
            self.data.add(result.objects, result.checked_bytes, result.findings)
            self.data.rows += result.rows
            done += task.info.length
            progress(done, total)

    def _whole_records(self) -> Iterator[tuple[int, str, Commit | Append]]:
        """Yield (producer, key, record) for every record by which segments count."""
        try:
            yield from self._whole_commits()
            yield from whole_appends(self.copies, self.upto)
        except DurableShuffleError as error:
            self._cannot_read_again(error)

    def _segment_tasks(self) -> Iterator[SegmentTask]:
        pairs = self.describe is not None and self.describe.codec == PAIR_CODEC
        for p, key, record in self._whole_records():
            try:
                extents = (
                    record.extent_array(key)
                    if isinstance(record, Append)
                    else record.extent_array()
                )
            except DurableShuffleError as error:
                if isinstance(record, Append):  # of a COMMIT it is a finding of check_commit
                    self.data.findings.append(finding_of(error, key, "whole extents"))
                continue
            shifts, own = np.zeros(len(extents), dtype=np.uint64), b""
            try:
                if isinstance(record, Append):
                    shifts, own = record.shift_array(len(extents), key), record.schema
                rows_schema = self._schema
                if own:
                    rows_schema = later_schema(own, rows_schema or pa.schema([]), name=key)
            except DurableShuffleError as error:
                self.data.findings.append(finding_of(error, key, "one shift per extent, a schema"))
                continue
            for info in record.segments:
                mine = (extents["segment"] == info.number) & (extents["length"] > 0)
                yield SegmentTask(
                    key=self.path.segment_key(p, record.record_id, info.number),
                    incarnation=self.path.incarnation,
                    producer=p,
                    info=info,
                    extents=extents[mine],
                    shifts=tuple(shifts[mine].tolist()),
                    schema=rows_schema,
                    max_frame_bytes=self._settings.max_frame_bytes,
                    kind=FrameKind.MSGPACK if pairs else FrameKind.ARROW,
                )


def _released_since(storage: Storage, path: StagePath, upto: list[int]) -> bool:
    log = copy_log(SlotLog(storage, path.log_prefix), STAGE_RECORDS)
    return log.last(Release) is not None or _upto(log.last(ReleaseUpto)) != upto


def _upto(record: Any) -> list[int]:
    """Return, per producer, the slot below which segments may be gone; [] if none may be."""
    return numbers(record.upto) if record else []


def _no_progress(_done: int, _total: int) -> None:
    return
