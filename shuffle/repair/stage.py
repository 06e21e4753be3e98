"""Repair a sealed stage from intact copies, and name the producers that must run again.

Strategy: verify first, and act only on findings that say that an object is damaged or missing.
Segments that can be restored byte for byte are written by a new attempt, which commits in a later
slot of its producer's log. One REPLACE with a new index makes all of these COMMITs count, and
readers then skip a damaged compaction. For other producers, DAMAGED in the stage log makes the next
run of the job run them again. The repair trusts no listing and deletes nothing but objects that it
wrote and never named. If it is killed, the next repair continues: it uses an intact COMMIT that no
REPLACE names yet before it writes anything.

It cannot rebuild control records, stages of log producers, or outputs of consumers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from durable_shuffle.serialization.errors import (
    AbortedError,
    ErrorKind,
    FencedError,
)
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import (
    StagePath,
    parse_compacted_key,
    parse_segment_key,
)
from durable_shuffle.shuffle.log.producer_log import (
    CommittedAttempt,
    commit_attempt,
    producer_state,
    with_extents,
)
from durable_shuffle.shuffle.log.records import Commit, Compact, Damaged
from durable_shuffle.shuffle.log.stage import (
    StageState,
    numbers,
    stage_log,
    stage_released,
)
from durable_shuffle.shuffle.repair.sources import RepairSources
from durable_shuffle.shuffle.seal.index import content_tag
from durable_shuffle.shuffle.seal.rewrite import abort_rewrite, replace_commits
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.report import Finding
from durable_shuffle.shuffle.verify.stage import StageWalk
from durable_shuffle.shuffle.write.segments import give_back

Outcome = Literal["intact", "repaired", "run again", "not repaired"]

UNSURE = "not everything could be read, nothing was changed"
_SETTLED = "what no record names does not count; `gc --delete` removes it"
_DAMAGE = (ErrorKind.NOT_FOUND, ErrorKind.CORRUPT_DATA)
_HELD_COPIES = 1 << 18
"""Compacted copies of extents that are known at a time: about 500 bytes of memory for each."""


@dataclass(frozen=True, slots=True)
class StageRepair:
    """The result of repairing one stage."""

    path: StagePath
    outcome: Outcome
    """"run again" means that some producers must run again; the other data is intact."""
    rebuilt: tuple[int, ...] = ()
    """Producers whose data was restored byte for byte."""
    run_again: tuple[int, ...] = ()
    """Producers that the next run of the job runs again."""
    index: bool = False
    """Whether a new index was written for readers."""
    why: str = ""
    """A remark on the outcome, or why the stage was not repaired and what to do."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The objects that findings are about."""

    producers: frozenset[int]
    """Producers with damaged or missing segments."""
    index: bool
    """Whether the index of the commits or a compaction is damaged or missing."""
    beyond: tuple[Finding, ...]
    """Findings that this module cannot repair."""


def assess(path: StagePath, state: StageState, findings: Iterable[Finding]) -> Damage:
    """Group findings about a stage's data by the repair that they need. Pure."""
    producers, index, beyond = set[int](), False, list[Finding]()
    indexes = {c.index for c in state.counted.values()}
    if state.replaced is not None:
        indexes.add(state.replaced.index)
    for finding in findings:
        key = finding.key
        if finding.kind not in _DAMAGE:
            beyond.append(finding)
        elif key.startswith(path.segments_prefix):
            producers.add(parse_segment_key(key)[0])
        elif path.index_of(key) in indexes or (
            key.startswith(path.compacted_prefix) and parse_compacted_key(key)[0] in state.counted
        ):
            index = True
        else:
            beyond.append(finding)
    return Damage(frozenset(producers), index, tuple(beyond))


def repair_stage(
    storage: Storage, path: StagePath, settings: Settings, *, ids: IdSource, generation: int
) -> StageRepair:
    """Verify a stage and repair what can be repaired. Safe to repeat and to run beside drivers.

    Memory follows M + R and the longest segment, not the M x R extents of the stage.

    Args:
        generation: the job's current generation, for people only.

    Raises:
        ConflictError: another repair came first; nothing of this one counts, start again.
        AbortedError: a cleaner aborted this repair; nothing of it counts, start again.
        NotFoundError: the stage was released meanwhile.
        OutcomeUnknownError: the storage did not say whether a record took effect; start again.
    """
    walk = StageWalk(storage, path, settings)
    if walk.state.release is not None or walk.state.closed:
        return StageRepair(path, "intact", why="released")
    walk.check_data(lambda _done, _total: None)
    if not walk.logs.findings and not walk.data.findings:
        return StageRepair(path, "intact")
    wrong = [finding for finding in walk.data.findings if finding not in walk.ends.findings]
    damage = assess(path, walk.state, wrong)
    refusal = _refusal(walk, damage)
    if refusal:
        return StageRepair(path, "not repaired", why=refusal)
    done = StageRepair(path, "repaired", why=_SETTLED)
    if wrong:
        done = _Repair(walk, damage, settings, ids, generation).run()
    assert walk.stage is not None  # else the log has findings
    for nonce in walk.ends.unsettled:  # last: the REPLACE above defeats a running repair
        abort_rewrite(walk.stage, nonce, ids.new_id(), "verify --repair")
    return done


def _refusal(walk: StageWalk, damage: Damage) -> str:
    """Return why the stage cannot be repaired and what to do; "" if it can. Pure."""
    release = "release the stage (`durable-shuffle release`) and run the job again"
    findings = (*walk.logs.findings, *damage.beyond)
    unsure = [finding for finding in findings if finding.kind not in _DAMAGE]
    if unsure:
        return f"{UNSURE}: {unsure[0]}"
    if walk.describe is not None and walk.describe.writing == "log":
        return f"producers that append leave no second copy: drop the pipeline, or {release}"
    if findings:
        return f"a control record cannot be rebuilt: {findings[0].key}; {release}"
    if walk.state.replaced is None and walk.ends.findings:
        return f"the stage is not sealed: {walk.ends.findings[0]}"
    if walk.state.replaced is None:
        return "the stage is not sealed yet: run the job, which seals it, then repair again"
    return ""


def _batches(producers: list[int], partitions: int) -> Iterator[list[int]]:
    """Yield the producers, so many at a time that copies of their extents can be held."""
    size = max(1, _HELD_COPIES // partitions)
    for begin in range(0, len(producers), size):
        yield producers[begin : begin + size]


class _Repair:
    def __init__(
        self, walk: StageWalk, damage: Damage, settings: Settings, ids: IdSource, generation: int
    ) -> None:
        assert walk.stage is not None  # else the log has findings
        assert walk.state.replaced is not None
        self._walk, self._damage, self._settings = walk, damage, settings
        self._ids, self._generation = ids, generation
        self._stage = walk.stage
        self._seal = walk.state.replaced
        self._slots = numbers(self._seal.commit_slots)
        self._bad = dict(enumerate(self._slots))
        """Per producer, the highest known slot with a COMMIT that is not intact. Valid for damaged
        producers only."""

    def run(self) -> StageRepair:
        walk, damage, state = self._walk, self._damage, self._walk.state
        compactions = [c for c in state.counted.values() if isinstance(c, Compact)]
        instead: dict[int, CommittedAttempt] = {}
        for some in _batches(sorted(damage.producers), self._stage.describe.partitions):
            sources = RepairSources(
                self._stage, self._seal, compactions, frozenset(some), self._settings
            )
            for producer in some:
                committed = self._spare(producer, sources) or self._rebuild(producer, sources)
                if committed is not None:
                    instead[producer] = committed.light(len(self._slots))
        lost = tuple(p for p in sorted(damage.producers) if p not in instead)
        if instead or damage.index:
            replace_commits(
                self._stage,
                state,
                [walk.commits[p] for p in range(len(self._slots))],
                instead,
                generation=self._generation,
                record_id=self._ids.new_id(),
                cause="verify --repair",
                settings=self._settings,
            )
        if lost:
            self._mark(lost)
        return StageRepair(
            walk.path,
            "run again" if lost else "repaired",
            tuple(sorted(instead)),
            lost,
            index=bool(instead or damage.index),
            why="no intact copy is stored; run the job again: it runs these producers alone"
            if lost
            else "",
        )

    def _spare(self, producer: int, sources: RepairSources) -> CommittedAttempt | None:
        """Return an intact COMMIT with the same content that an earlier repair left, or None.

        Record the highest COMMIT that is not intact, so that neither this repair nor the next run
        of the producer uses a damaged one as its result.
        """
        tag = content_tag(self._counted(producer))
        state = producer_state(self._walk.copies[producer].records)
        spare: CommittedAttempt | None = None
        for committed in state.commits(after=self._slots[producer]):
            own = committed.commit.producer == producer
            if not own or not sources.intact(committed.commit):
                self._bad[producer] = committed.slot
            elif spare is None and content_tag(self._whole(committed).commit) == tag:
                spare = committed
        return spare

    def _counted(self, producer: int) -> Commit:
        """Return the producer's COMMIT that counts, with its extents."""
        return self._whole(self._walk.commits[producer]).commit

    def _whole(self, committed: CommittedAttempt) -> CommittedAttempt:
        log = self._stage.producer_log(committed.commit.producer)
        return next(with_extents([(log, committed)], threads=1))

    def _rebuild(self, producer: int, sources: RepairSources) -> CommittedAttempt | None:
        """Write the producer's segments again under a new attempt and commit the attempt.

        If a segment cannot be restored, delete what was written and return None.
        """
        commit, after = self._counted(producer), self._bad[producer]
        records = self._walk.copies[producer].records.values()
        others = [r for r in records if isinstance(r, Commit) and r.record_id != commit.record_id]
        attempt, written = self._ids.new_id(), list[str]()
        storage = self._stage.storage
        try:
            for info in commit.segments:
                data = sources.segment(commit, info, others)
                if data is None:
                    give_back(storage, written)
                    return None
                written.append(self._stage.path.segment_key(producer, attempt, info.number))
                storage.put(written[-1], [data])
        except Exception:
            give_back(storage, written)  # COMMIT was not sent and will not be
            raise
        own = replace(commit, record_id=attempt)
        log = self._stage.producer_log(producer)
        try:
            committed = commit_attempt(log, own, after=after)
        except (AbortedError, FencedError):
            give_back(storage, written)
            raise
        if committed.commit.record_id != attempt:
            give_back(storage, written)
        return committed if content_tag(committed.commit) == content_tag(commit) else None

    def _mark(self, lost: tuple[int, ...]) -> None:
        """Append DAMAGED for these producers to the stage log, unless the log says it already."""
        wanted = {p: self._bad[p] for p in lost}
        record = Damaged(
            self._ids.new_id(),
            self._generation,
            np.array(lost, dtype="<u4").tobytes(),
            np.array([wanted[p] for p in lost], dtype="<u4").tobytes(),
        )

        def unless_said(state: StageState) -> Damaged | None:
            if state.over is not None:
                raise stage_released(self._stage, state.over)
            said = all(state.damaged.get(p, -1) >= slot for p, slot in wanted.items())
            return None if said else record

        stage_log(self._stage).decide(self._walk.state, unless_said)
