"""Judge a job's objects: live (needed), orphan (may be deleted) or unknown. Pure.

Strategy: an object is an orphan only if the logs prove that it can never count. If its writer is
still undecided, `attempt` names the attempt that must be aborted first. Every object that a log
names stays. One object or record that cannot be explained makes its whole stage or consumer task
unknown, and nothing of that stage or task is deleted.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.consume.resume_set import ResumeSet
from durable_shuffle.shuffle.log.appender_log import Append, AppenderOpen, settled_segments
from durable_shuffle.shuffle.log.layout import (
    ConsumerPath,
    StagePath,
    parse_compacted_key,
    parse_consumer_key,
    parse_segment_key,
    slot_name,
)
from durable_shuffle.shuffle.log.producer_log import producer_state
from durable_shuffle.shuffle.log.records import Abort, Closed, Commit, Compact, Describe, Seal
from durable_shuffle.shuffle.log.stage import StageState, numbers, with_record
from durable_shuffle.shuffle.log.stage_notes import Entered
from durable_shuffle.shuffle.storage.contract import ObjectInfo

Verdict = Literal["live", "orphan", "unknown"]

_Opinion = tuple[Verdict, str, tuple[int, str] | None]
"""Verdict, reason, `Judged.attempt`."""

REWRITE = -1
"""Takes the place of the producer's number for objects of a compaction or a repair."""

_SLOT = re.compile(r"log/\d{10,}")
_JOB_SLOT = re.compile(r"(log|snapshots|floors|commands|requests|status)/\d{10,}")
_PRODUCER_SLOT = re.compile(r"producers/p(\d{6,})/\d{10,}")
_INDEX = re.compile(r"index/([0-9a-f]{32})(-[1-9][0-9]*)?")
_PREFLIGHT = re.compile(r"[^/]+/preflight/[0-9a-f]{32}")
_REPORT = re.compile(r"reports/[0-9a-f]{32}/\d{10,}")


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one object, with the reason."""

    key: str
    size_bytes: int
    verdict: Verdict
    reason: str
    attempt: tuple[int, str] | None = None
    """(producer or REWRITE, attempt) that must be aborted before the object may be deleted; None if
    no abort is needed."""
    temporary: bool = False
    """Whether this is a temporary file of a killed writer and not an object."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The objects of a stage, of a consumer task, or of the rest of a job.

    If one object of a stage or consumer task is unknown, none of its objects is an orphan.
    """

    prefix: str
    objects: tuple[Judged, ...]
    stage: StagePath | None = None
    consumer: ConsumerPath | None = None
    must_fence: bool = False
    """Whether the consumer's view may still name objects, so that it must be fenced before they may
    be deleted."""
    release_unfinished: bool = False
    """Whether a release was decided but not completed."""
    give_up: bool = False
    """Whether a write job began this stage, never finished it, and has been idle for long."""

    def of(self, verdict: Verdict) -> tuple[Judged, ...]:
        """Return the objects with this verdict."""
        return tuple(item for item in self.objects if item.verdict == verdict)

    @property
    def unknown(self) -> bool:
        return any(item.verdict == "unknown" for item in self.objects)


@dataclass(frozen=True, slots=True)
class StageLogs:
    """The records of a stage's logs."""

    in_job_log: Literal["live", "begun", "released", "freed", "unknown"]
    """What the job log says of the stage; freed: released, and nothing is left of its data."""
    stage: Mapping[int, Any]
    """Slot -> record of the stage log."""
    producers: Mapping[int, Mapping[int, Any]]
    """Producer -> slot -> record of its log."""
    findings: tuple[tuple[str, str], ...] = ()
    """(key, problem) for every slot that could not be read."""

    @property
    def closed(self) -> bool:
        """Whether a release was completed and the stage log has no missing slot."""
        closed = any(isinstance(record, Closed) for record in self.stage.values())
        return closed and len(self.stage) > max(self.stage)


def judge_stage(
    path: StagePath,
    listed: Iterable[ObjectInfo],
    logs: StageLogs,
    temporaries: Iterable[Judged] = (),
    *,
    at_work_since: float = math.inf,
) -> Scope:
    """Judge the objects of one stage.

    Args:
        listed: all objects below the stage's prefix, listed before the logs were read.
        logs: the records of its logs, read after the listing.
        temporaries: verdicts on temporary files below the stage's prefix.
        at_work_since: in seconds since 1970; a write job that wrote since then counts as running.
    """
    listed = list(listed)
    judge = _StageJudge(path, logs, listed, at_work_since)
    objects = [*map(judge.object, listed), *judge.problems(), *temporaries]
    unfinished = logs.in_job_log == "released" and (not logs.closed or bool(logs.findings))
    scope = Scope(path.prefix, tuple(objects), path, release_unfinished=unfinished)
    return _fail_closed(replace(scope, give_up=judge.abandoned))


class _StageJudge:
    def __init__(
        self, path: StagePath, logs: StageLogs, listed: Iterable[ObjectInfo], at_work_since: float
    ) -> None:
        self._path, self._logs = path, logs
        records = logs.stage.values()
        young = [i.key for i in listed if i.modified_wall_seconds >= at_work_since]
        self._young = {key.rpartition("/")[2].rpartition("-")[0] for key in young}
        """`p<producer>-<attempt>` of segments that were written recently."""
        self._lost = logs.in_job_log == "begun" and any(isinstance(r, Entered) for r in records)
        self.abandoned = logs.in_job_log == "begun" and not young and not self._lost
        """Whether the stage was never finished and nobody has written to it for long."""
        first = logs.stage.get(0)
        self._describe = first if isinstance(first, Describe) else None
        self._seals = [r for r in records if isinstance(r, Seal)]
        self._state = StageState()
        self._misfit: list[Judged] = []
        for slot, record in sorted(logs.stage.items()):
            key = path.log_prefix + slot_name(slot)
            try:
                self._state = with_record(replace(self._state, next_slot=slot), record, key)
            except CorruptDataError as error:
                self._misfit.append(Judged(key, 0, "unknown", str(error)))
        described = self._describe.producers if self._describe else 0
        self._producers = max([described, *(seal.producers for seal in self._seals)])
        self._upto = numbers(self._state.upto.upto) if self._state.upto else []

    def problems(self) -> list[Judged]:
        """Return a verdict for each problem of the logs themselves."""
        logs, path = self._logs, self._path
        if logs.in_job_log in ("released", "freed"):
            return []  # a release handles damaged logs
        problems = [Judged(key, 0, "unknown", what) for key, what in logs.findings] + self._misfit
        d = self._describe
        if self._lost:
            what = "the job log lost its STAGE record; run verify --repair"
            problems.append(Judged(path.log_prefix, 0, "unknown", what))
        if logs.in_job_log == "unknown":
            return problems
        if d is None:
            problems.append(Judged(path.log_prefix, 0, "unknown", "the stage has no DESCRIBE"))
        elif f"{d.name}-{d.fingerprint}-{d.incarnation}" != path.folder:
            problems.append(Judged(path.log_prefix, 0, "unknown", "DESCRIBE is of another stage"))
        if self._state.release and logs.in_job_log == "live":
            what = "the stage log says released, the job log does not"
            problems.append(Judged(path.log_prefix, 0, "unknown", what))
        return problems

    def object(self, info: ObjectInfo) -> Judged:
        name = info.key.removeprefix(self._path.prefix)
        if _SLOT.fullmatch(name) or _PRODUCER_SLOT.fullmatch(name):
            return Judged(info.key, info.size_bytes, "live", "a slot of a log")
        if name.startswith("segments/"):
            verdict, reason, attempt = self._segment(info)
        elif name.startswith("compacted/"):
            verdict, reason, attempt = self._compacted(info)
        elif match := _INDEX.fullmatch(name):
            verdict, reason, attempt = self._index(match[1])
        else:
            return Judged(info.key, info.size_bytes, "unknown", "not a name that belongs here")
        if verdict != "unknown" and self.abandoned:
            return Judged(info.key, info.size_bytes, "orphan", "its stage was never finished")
        if verdict != "unknown" and self._logs.in_job_log in ("released", "freed"):
            return Judged(info.key, info.size_bytes, "orphan", "the stage was released")
        if self._logs.in_job_log == "unknown":
            return Judged(info.key, info.size_bytes, "unknown", "the job log knows no such stage")
        return Judged(info.key, info.size_bytes, verdict, reason, attempt)

    def _index(self, nonce: str) -> _Opinion:
        if any(seal.index == nonce for seal in self._seals):
            return "live", "named by SEAL", None
        if not self._seals:  # without a SEAL, a writer may still win one that names it
            return "live", "a SEAL on its way may still name it", None
        counted = self._state.counted.get(nonce)
        if counted is not None:
            return "live", f"named by {counted.KIND}", None
        if nonce in self._state.void:
            return "orphan", "an index that no SEAL, REPLACE or COMPACT names", None
        return "orphan", "an index that no SEAL, REPLACE or COMPACT names yet", (REWRITE, nonce)

    def _compacted(self, info: ObjectInfo) -> _Opinion:
        try:
            attempt, number = parse_compacted_key(info.key)
        except CorruptDataError:
            return "unknown", "not a compacted segment's name", None
        if self._path.compacted_key(attempt, number) != info.key:
            return "unknown", "a compacted segment in a folder that is not its own", None
        if not self._seals:
            return "unknown", "a compacted segment of a stage that is not sealed", None
        counted = self._state.counted.get(attempt)
        if isinstance(counted, Compact):
            if number not in {segment.number for segment in counted.segments}:
                return "unknown", "COMPACT was won without it", None
            return "live", "named by COMPACT", None
        if counted is not None:
            return "unknown", "a compacted segment of a repair", None
        if attempt in self._state.void:
            return "orphan", "its compaction does not count", None
        return "orphan", "its compaction has no COMPACT", (REWRITE, attempt)

    def _segment(self, info: ObjectInfo) -> _Opinion:
        try:
            producer, attempt, number = parse_segment_key(info.key)
        except CorruptDataError:
            return "unknown", "not a segment's name", None
        if self._path.segment_key(producer, attempt, number) != info.key:
            return "unknown", "a segment in a folder that is not its own", None
        if producer >= self._producers:
            return "unknown", f"the stage has only {self._producers} producers", None
        records = self._logs.producers.get(producer, {})
        if self._describe is not None and self._describe.writing == "log":
            return self._appended(records, producer, attempt, number)
        fate = producer_state(records).fate(attempt)
        if isinstance(fate, Commit):
            if number not in {s.number for s in fate.segments}:
                return "unknown", "its attempt committed without it", None
            return "live", "named by COMMIT", None
        if isinstance(fate, Abort):
            return "orphan", f"its attempt was aborted: {fate.cause}", None
        if isinstance(fate, Closed) and self._logs.in_job_log == "live":
            return "unknown", "the producer's log is closed, the stage is not released", None
        return "orphan", "its attempt has no COMMIT", (producer, attempt)

    def _appended(
        self, records: Mapping[int, Any], producer: int, attempt: str, number: int
    ) -> _Opinion:
        named, stopped = settled_segments(records.values())
        if (attempt, number) in named:
            slot = next(
                slot
                for slot, record in records.items()
                if isinstance(record, Append)
                and record.record_id == attempt
                and number in {segment.number for segment in record.segments}
            )
            upto = self._upto[producer] if producer < len(self._upto) else 0
            released = slot < upto
            verdict: Verdict = "orphan" if released else "live"
            return verdict, "below RELEASE_UPTO" if released else "named by APPEND", None
        if attempt in stopped:
            return "orphan", "its attempt was stopped and no APPEND names it", None
        if any(isinstance(r, AppenderOpen) and r.record_id == attempt for r in records.values()):
            return "live", "its attempt may still append it", None
        if any(r.after.query is None for r in records.values() if not isinstance(r, Closed)):
            return "unknown", "its attempt never opened the producer's log", None
        if f"p{producer:06d}-{attempt}" in self._young:
            return "live", "of a write job, too young to be left behind", None
        return "orphan", "its write job has no APPEND", (producer, attempt)


def judge_consumer(
    path: ConsumerPath,
    listed: Iterable[ObjectInfo],
    state: ResumeSet | None,
    findings: Sequence[tuple[str, str]] = (),
    temporaries: Iterable[Judged] = (),
) -> Scope:
    """Judge the objects of one consumer task.

    Args:
        listed: all objects below the task's prefix, listed before the log was read.
        state: the state at the end of its log; None if the log cannot be read.
        findings: (key, problem) for every slot that could not be read.
        temporaries: verdicts on temporary files below the task's prefix.
    """
    named = named_by(state) if state else frozenset()
    begun = state is not None and state.next_slot > 0
    objects: list[Judged] = [Judged(key, 0, "unknown", what) for key, what in findings]
    for info in listed:
        verdict: Verdict = "live"
        try:
            _, kind, _ = parse_consumer_key(info.key)
        except CorruptDataError:
            verdict, reason = "unknown", "not a name that belongs here"
        else:
            reason = "a slot of a log" if kind == "slot" else "named by the consumer's log"
            if kind != "slot" and not begun:
                verdict, reason = "unknown", "there is no consumer log to name it"
            elif kind != "slot" and info.key not in named:
                verdict, reason = "orphan", f"{kind} that the consumer's log does not name"
        objects.append(Judged(info.key, info.size_bytes, verdict, reason))
    scope = _fail_closed(Scope(path.prefix, (*objects, *temporaries), consumer=path))
    over = state is not None and (state.finished or state.closed)
    orphans = any(not item.temporary for item in scope.of("orphan"))
    return replace(scope, must_fence=orphans and not over)


def named_by(state: ResumeSet) -> frozenset[str]:
    """Return the keys of all objects that a consumer's log still needs: outputs and state."""
    keys = {output.key for output in state.outputs}
    keys.update(key for effect in state.pending for key in effect.objects)
    if state.state is not None and not isinstance(state.state, bytes):
        keys.add(state.state.key)
    return frozenset(keys)


def judge_rest(
    job: str,
    listed: Iterable[ObjectInfo],
    temporaries: Iterable[Judged],
    *,
    now: float,
    older_than_seconds: float,
) -> list[Scope]:
    """Judge the objects that belong to no stage and no consumer: the job's logs, and leftovers.

    Each object with an unknown name is a scope of its own: it stays, and does not keep others from
    being deleted.

    Args:
        now: seconds since 1970.
        older_than_seconds: see `by_age`.
    """
    ours: list[Judged] = []
    strange: list[Scope] = []
    for info in listed:
        name = info.key.removeprefix(f"{job}/")
        if _JOB_SLOT.fullmatch(name):
            ours.append(Judged(info.key, info.size_bytes, "live", "a slot of a log"))
        elif _PREFLIGHT.fullmatch(info.key):
            ours.append(by_age(info, "a driver's start", now, older_than_seconds))
        elif _REPORT.fullmatch(name):
            ours.append(by_age(info, "a task's last words", now, older_than_seconds))
        else:
            stranger = Judged(info.key, info.size_bytes, "unknown", "not a name that belongs here")
            strange.append(Scope(info.key, (stranger,)))
    return [Scope(f"{job}/", (*ours, *temporaries)), *strange]


def by_age(
    info: ObjectInfo, of: str, now: float, older_than_seconds: float, *, temporary: bool = False
) -> Judged:
    """Judge a short-lived object, which may be deleted at any time once it is old enough.

    The age only spares objects of writers that are still running.

    Args:
        of: who wrote the object, for the reason.
    """
    old = now - info.modified_wall_seconds >= older_than_seconds
    return Judged(
        info.key,
        info.size_bytes,
        "orphan" if old else "live",
        f"left behind by {of}" if old else f"{of}, too young to be left behind",
        temporary=temporary,
    )


def _fail_closed(scope: Scope) -> Scope:
    """Return the scope; if any of its objects is unknown, its orphans become unknown, too."""
    if not scope.unknown:
        return scope
    spared = tuple(
        replace(item, verdict="unknown", reason=f"left alone beside unknown objects: {item.reason}")
        if item.verdict == "orphan"
        else item
        for item in scope.objects
    )
    return replace(scope, objects=spared, release_unfinished=False, give_up=False)
