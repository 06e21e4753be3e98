"""Check the consumers of a job: every record of their logs, and the objects that the logs name.

Strategy: a listing shows the consumer tasks. Every slot of a log is read, even beside damaged ones.
After a damaged record the fold continues at the next full record, which needs none before it. The
outputs and the state to check are those of the last state that the fold reached.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from durable_shuffle.serialization.checksum import frame_seed
from durable_shuffle.serialization.errors import DurableShuffleError, ErrorKind
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.resume_set import ResumeSet, fold, is_full
from durable_shuffle.shuffle.log.consumer_records import (
    CONSUMER_RECORDS,
    OutputRef,
    StateRef,
)
from durable_shuffle.shuffle.log.layout import ConsumerPath, consumers_prefix, parse_consumer_key
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.read.extents import read_frames
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.verify.logs import LogCopy, copy_log, last_slots
from durable_shuffle.shuffle.verify.report import ConsumerVerdict, Finding, finding_of
from durable_shuffle.shuffle.verify.segment_bytes import StoredBytes, check_bytes


def check_consumers(storage: Storage, job: str, settings: Settings) -> tuple[ConsumerVerdict, ...]:
    """Check all consumer tasks of a job, sorted by name.

    A failed listing is a finding of a consumer named "unknown".

    Args:
        settings: `max_frame_bytes` and `control_threads` are used.
    """
    last, problems = last_slots(storage, consumers_prefix(job))
    paths = listed_consumers(f"{prefix}{slot:010d}" for prefix, slot in last.items())

    def check(path: ConsumerPath) -> ConsumerVerdict:
        return _check(storage, path, settings, known=last[path.log_prefix])

    with ThreadPoolExecutor(settings.control_threads) as pool:
        found = list(pool.map(check, paths))
    if problems:  # tasks that could not be listed could not be checked
        nobody = ConsumerPath(job, "unknown", "unknown")
        found.append(ConsumerVerdict(nobody, 0, False, 0, 0, 0, problems))  # noqa: FBT003
    return tuple(found)


def listed_consumers(keys: Iterable[str]) -> list[ConsumerPath]:
    """Return the consumer tasks whose logs have a slot among `keys`, by name; skip other keys."""
    found = set()
    for key in keys:
        try:
            path, kind, _ = parse_consumer_key(key)
        except DurableShuffleError:
            continue  # no log names such a key
        if kind == "slot":
            found.add(path)
    return sorted(found, key=lambda path: path.prefix)


@dataclass(slots=True)
class _Tally:
    objects: int
    checked_bytes: int
    findings: list[Finding] = field(default_factory=list)

    def wrong(self, key: str, expected: str, found: str) -> None:
        self.findings.append(Finding(key, ErrorKind.CORRUPT_DATA, expected, found))


def _check(
    storage: Storage, path: ConsumerPath, settings: Settings, *, known: int
) -> ConsumerVerdict:
    log = copy_log(SlotLog(storage, path.log_prefix), CONSUMER_RECORDS, known=known)
    tally = _Tally(log.objects, log.checked_bytes, list(log.findings))
    state = _folded(log, tally)
    if not state.closed:
        for output in state.outputs:
            _check_output(storage, path, output, settings, tally)
        if isinstance(state.state, StateRef):
            _check_object(storage, state.state, "a state", tally)
    records = sum(at.next_ordinal for one in state.inputs.values() for at in one.acked.values())
    return ConsumerVerdict(
        path,
        records,
        state.finished,
        len(state.outputs),
        tally.objects,
        tally.checked_bytes,
        tuple(tally.findings),
        tuple(sorted({(folder, one.stage_slot) for (folder, _), one in state.inputs.items()})),
    )


def _folded(log: LogCopy[Any], tally: _Tally) -> ResumeSet:
    """Return the state after the last record that fits the records before it."""
    last = ResumeSet()
    state: ResumeSet | None = last
    for slot, record in log.records.items():
        if state is None or state.next_slot != slot:
            state = ResumeSet(next_slot=slot) if is_full(record) else None
        if state is None:
            continue  # it only says what changed since a damaged record
        try:
            state = last = fold(state, record, name=log.log.key(slot))
        except DurableShuffleError as error:
            expected = f"a record that follows slot {slot - 1}" if slot else "OPEN"
            tally.findings.append(finding_of(error, log.log.key(slot), expected))
            state = None
    return last


def _check_output(
    storage: Storage, path: ConsumerPath, output: OutputRef, settings: Settings, tally: _Tally
) -> None:
    if not output.key.startswith(path.outputs_prefix):
        tally.wrong(output.key, f"an output below {path.outputs_prefix!r}", "a key elsewhere")
        return
    data = _check_object(storage, output, "an output", tally)
    if data is None:
        return
    nonce = output.key.rsplit("/", 1)[-1]
    try:
        for _ in read_frames(
            data.pieces(0, len(data)),
            lambda ordinal: frame_seed(nonce, 0, 0, ordinal),
            lambda *_: (),
            rows=output.rows,
            place=f"output={output.key!r}",
            max_body_bytes=settings.max_frame_bytes,
        ):
            pass
    except DurableShuffleError as error:
        tally.findings.append(finding_of(error, output.key, "intact frames"))


def _check_object(
    storage: Storage, named: OutputRef | StateRef, what: str, tally: _Tally
) -> StoredBytes | None:
    """Return the object that a record names, or None with a finding if it is missing or differs."""
    key, length = named.key, named.length
    try:
        data = StoredBytes(storage, key, length)
        findings = check_bytes(data, length, named.sha256)
    except DurableShuffleError as error:
        tally.findings.append(finding_of(error, key, f"{what} of {length} bytes"))
        return None
    tally.objects, tally.checked_bytes = tally.objects + 1, tally.checked_bytes + data.size
    tally.findings.extend(findings)
    return None if findings else data
