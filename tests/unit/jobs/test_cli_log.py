"""The commands on a stage of log producers: its logs, its rows, its consumers."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from small_log import SCHEMA, numbered_rows, rows_for
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.serialization.control import bound, decode_control, encode_control
from durable_shuffle.serialization.markers import Checkpoint
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.retention import consumer_tasks, register_consumers
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.release.upto import release_upto
from durable_shuffle.shuffle.storage.contract import MOST_BYTES
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.write.log_producer import LogProducer

PARTITIONS = 3
FIRST, SECOND = (0, 10), (10, 16)
"""Rows of producer 0: those of its first attempt, in two APPENDs, and those of its second."""
OTHER = (100, 104)
"""Rows of producer 1, in one APPEND."""


@dataclass(frozen=True)
class Log:
    """A stage of two log producers: 0 was superseded and ended, 1 is open."""

    url: str
    job: JobLog
    stage: StageHandle
    ids: SeededIds

    def open(self, producer: int, generation: int) -> LogProducer:
        return LogProducer.open(
            self.stage,
            producer,
            record_id=self.ids.new_id(),
            generation=generation,
            settings=SMALL,
        )


@pytest.fixture
def log(tmp_path: Path, seed: int) -> Log:
    ids = SeededIds(random.Random(seed))
    storage = LocalStorage(tmp_path)
    job = JobLog.claim(storage, "flow", ids.new_id())
    stage = new_stage(
        storage, ids, SCHEMA, partitions=PARTITIONS, producers=2, writing="log", job="flow"
    )
    path = stage.path
    job.append(
        StageUse(ids.new_id(), job.generation, path.name, path.fingerprint, path.incarnation)
    )
    found = Log(str(tmp_path), job, stage, ids)
    with found.open(0, 1) as first:
        first.append(numbered_rows(0, 4, PARTITIONS), b"4", markers=[Checkpoint(1)])
        first.append(numbered_rows(4, 10, PARTITIONS), b"10")
    with found.open(0, 2) as second:
        second.append(numbered_rows(*SECOND, PARTITIONS), b"16")
        second.end("FINITE")
    with found.open(1, 2) as other:
        other.append(numbered_rows(*OTHER, PARTITIONS), b"4")
    return found


def rows_of(k: int) -> set[int]:
    """What partition k must hold, by the rule of the rows alone."""
    return {n for span in (FIRST, SECOND, OTHER) for n in rows_for(k, *span, PARTITIONS)}


def read_some(log: Log, k: int, batches: int) -> int:
    """Have a consumer acknowledge so many batches of partition k; return their rows."""
    rows = 0
    with open_view(log.stage, k, consumer="reader", follow_seconds=300) as view:
        for _, batch in zip(range(batches), view, strict=False):  # never asks for one more
            rows += batch.num_rows
            view.ack()
    return rows


def inspected(log: Log, run: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("inspect", log.url, "flow", "stage", "--json").stdout)
    return found["stage"]  # type: ignore[no-any-return]


def test_inspect_shows_attempts_and_ends(log: Log, run: Callable[..., Any]) -> None:
    """Every OPEN with its generation, what it appended, and how each producer ended."""
    stage = inspected(log, run)
    assert (stage["status"], stage["producers_ended"], stage["rows"]) == ("open", 1, 20)
    first, other = stage["producers"]
    names = ("epoch", "generation", "appends", "rows", "end")
    assert [[one[name] for name in names] for one in first["attempts"]] == [
        [1, 1, 2, 10, None],
        [2, 2, 1, 6, "FINITE"],
    ]
    assert [[one[name] for name in names] for one in other["attempts"]] == [[1, 2, 1, 4, None]]
    assert (first["end"], other["end"]) == ("FINITE", None)
    assert stage["partitions"]["rows"] == [len(rows_of(k)) for k in range(PARTITIONS)]
    on_disk = [path.stat().st_size for path in Path(log.url).rglob("*.seg")]
    assert (stage["stored_segments"], stage["data_bytes"]) == (len(on_disk), sum(on_disk))
    assert stage["uncommitted_segments"] == 0
    lines = run("inspect", log.url, "flow", "stage").stdout.splitlines()
    assert any("open, 1 of 2 producers ended" in line for line in lines)
    attempts = lines[next(n for n, line in enumerate(lines) if "GENERATION" in line) + 1 :]
    for line, word in zip(attempts, ["superseded", "FINITE", "still open"], strict=True):
        assert word in line


@pytest.mark.parametrize("forged", ["OPEN", "ABORT"])
def test_a_record_of_an_attempt_that_never_opened_is_named(
    log: Log, run: Callable[..., Any], forged: str
) -> None:
    """A forged owner is an error of that log; it is no defect of the command."""
    slots, storage = log.stage.producer_log(0), log.stage.storage
    opened, append = (
        dict(decode_control(slots.read(slot) or b"", name="").fields) for slot in (3, 4)
    )
    if forged == "OPEN":
        opened["record_id"] = "c" * 32
    else:
        mine = {"owner": "d" * 32}
        after = {**opened["after"], **mine}
        opened = {"record_id": "c" * 32, "attempt": "e" * 32, "cause": "", "after": after}
        append |= {"record_id": "d" * 32, "after": {**append["after"], **mine}}
    for slot, kind, fields in ((3, forged, opened), (4, "APPEND", append)):
        key = slots.key(slot)
        storage.delete([key])
        storage.put(key, [bound(encode_control(kind, fields), key)])
    for command in ("ls", "inspect"):
        told = run(command, log.url, "flow", *["stage"] * (command == "inspect"))
        assert slots.prefix in told.output
        assert "defect" not in told.output


@pytest.mark.parametrize("k", [-1, 99])
def test_a_cursor_outside_the_stage_is_told_as_damage(
    log: Log, run: Callable[..., Any], k: int
) -> None:
    """It names the consumer's log, and gives no lag that is a guess."""
    read_some(log, 0, 1)
    (path,) = consumer_tasks(log.stage.storage, "flow", "reader")
    slots = SlotLog(log.stage.storage, path.log_prefix)
    for slot in range(slots.find_end()):
        record = decode_control(slots.read(slot) or b"", name="")
        inputs = [{**cursor, "subpartition": k} for cursor in record.fields["inputs"]]
        key = slots.key(slot)
        log.stage.storage.delete([key])
        forged = encode_control(record.kind, {**record.fields, "inputs": inputs})
        log.stage.storage.put(key, [bound(forged, key)])
    (consumer,) = inspected(log, run)["consumers"]
    assert consumer["error"].startswith("corrupt_data")
    assert slots.prefix in consumer["error"]
    assert "lag" not in consumer
    assert "corrupt_data" in run("inspect", log.url, "flow", "stage").stdout


def test_inspect_counts_what_no_record_names(log: Log, run: Callable[..., Any]) -> None:
    """A segment of an attempt that never appended it is not taken for data."""
    log.stage.storage.put(log.stage.path.segment_key(1, "c" * 32, 0), [b"left behind"])
    stage = inspected(log, run)
    assert (stage["uncommitted_segments"], stage["uncommitted_bytes"]) == (1, 11)


def test_inspect_of_producers_that_never_opened_or_suspended(
    log: Log, run: Callable[..., Any]
) -> None:
    """A suspended producer says so and has not ended: a successor may go on."""
    with log.open(1, 3) as other:
        other.end("SUSPEND")
    stage = inspected(log, run)
    assert (stage["producers"][1]["end"], stage["producers_ended"]) == ("SUSPEND", 1)
    empty = new_stage(
        LocalStorage(log.url), log.ids, SCHEMA, partitions=1, writing="log", job="flow"
    )
    path = empty.path
    use = StageUse(log.ids.new_id(), 1, path.name, path.fingerprint, path.incarnation)
    log.job.append(use)
    assert "never opened" in run("inspect", log.url, "flow", path.folder).stdout


def test_inspect_of_a_released_stage(log: Log, run: Callable[..., Any]) -> None:
    """Its logs stay and are shown; what they name is gone."""
    release_stage_of(log.job, log.stage.storage, log.stage.path, log.ids)
    stage = inspected(log, run)
    assert (stage["status"], stage["stored_segments"]) == ("released", 0)
    assert [len(p["attempts"]) for p in stage["producers"]] == [2, 1]
    assert "closed" in run("inspect", log.url, "flow", "stage").stdout


def test_inspect_shows_consumers_with_lag(log: Log, run: Callable[..., Any]) -> None:
    """Position and lag of each consumer and partition; lag is what was appended behind it."""
    read = read_some(log, 0, 1)
    assert 0 < read < len(rows_of(0))
    (one,) = inspected(log, run)["consumers"]
    assert (one["consumer"], one["partition"], one["finished"]) == ("reader", 0, False)
    assert (one["records"], one["lag"]) == (read, len(rows_of(0)) - read)
    text = run("inspect", log.url, "flow", "stage").stdout
    assert text.splitlines()[-1].split()[:4] == ["reader", "0", str(read), str(one["lag"])]


def shown(log: Log, run: Callable[..., Any], *arguments: object) -> list[int]:
    """The rows that `cat` writes, by number; every other column must fit."""
    result = run("cat", log.url, "flow", "stage", "--format", "jsonl", *arguments)
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(row["v"] == f"{row['k']}:".ljust(20, "x") for row in rows)
    return [row["k"] for row in rows]


def test_cat_writes_what_the_logs_hold(log: Log, run: Callable[..., Any]) -> None:
    """All rows once, each producer's in order; a partition, a limit and every format work."""
    for k in range(PARTITIONS):
        found = shown(log, run, "--partition", k)
        assert set(found) == rows_of(k)
        for producer in (False, True):
            mine = [n for n in found if (n >= OTHER[0]) == producer]
            assert mine == sorted(mine)
    everything = shown(log, run)
    assert sorted(everything) == sorted(n for k in range(PARTITIONS) for n in rows_of(k))
    for limit in (0, 1, 7, 8, 99):
        assert shown(log, run, "--limit", limit) == everything[:limit]
    table = run("cat", log.url, "flow", "stage")
    assert len(table.stdout.splitlines()) == 21
    assert "20 rows of 20" in table.stderr
    document = json.loads(run("cat", log.url, "flow", "stage", "--json").stdout)
    assert [row["k"] for row in document["rows"]] == everything
    csv = run("cat", log.url, "flow", "stage", "--format", "csv").stdout.splitlines()
    assert [line.split(",")[0] for line in csv] == ["k", *map(str, everything)]
    assert run("cat", log.url, "flow", "stage", "--partition", PARTITIONS).exit_code == 2


def test_cat_says_whether_producers_have_ended(log: Log, run: Callable[..., Any]) -> None:
    """Standard error tells of producers that have not ended, SUSPEND included, until all have."""
    words = ("cat", log.url, "flow", "stage", "--format", "jsonl")
    assert "1 of 2 producers have not ended" in run(*words).stderr
    with log.open(1, 3) as other:
        other.end("SUSPEND")
    assert "1 of 2 producers have not ended" in run(*words).stderr
    with log.open(1, 4) as other:
        other.end("DRAIN")
    assert run(*words).stderr == ""


def test_cat_after_release(log: Log, run: Callable[..., Any]) -> None:
    """Rows that were released are left out and counted; a released stage is an error."""
    storage = log.stage.storage
    register_consumers(log.stage, ("reader",), ids=log.ids, generation=1)
    for k in range(PARTITIONS):
        read_some(log, k, 3)
    before = {path.name for path in Path(log.url).rglob("*.seg")}
    freed = release_upto(log.stage, {0: 3, 1: 0}, ids=log.ids, generation=1)
    gone = before - {path.name for path in Path(log.url).rglob("*.seg")}
    assert (freed.objects, len(gone)) == (2, 2), "the two APPENDs of the first attempt"
    left = [*range(*SECOND), *range(*OTHER)]
    assert sorted(shown(log, run)) == left
    assert "10 rows were released" in run("cat", log.url, "flow", "stage").stderr
    stage = inspected(log, run)
    assert (stage["rows"], stage["released_rows"]) == (len(left), 10)
    assert stage["data_bytes"] == sum(p.stat().st_size for p in Path(log.url).rglob("*.seg"))
    assert run("verify", log.url, "flow").exit_code == 0, "what was released is not missed"
    kept = min(Path(log.url).rglob("*.seg"))
    data = kept.read_bytes()
    kept.unlink()
    assert run("verify", log.url, "flow").exit_code == 1, "anything else is"
    kept.write_bytes(data)
    release_stage_of(log.job, storage, log.stage.path, log.ids)
    result = run("cat", log.url, "flow", "stage")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "was released" in result.stderr


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_cat_of_damaged_rows_fails(log: Log, run: Callable[..., Any], damage: str) -> None:
    """A segment that is damaged or gone is an error that names it, never fewer rows."""
    path = min(Path(log.url).rglob("*.seg"))
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "flipped":
        data[100] ^= 4
        path.write_bytes(data)
    result = run("cat", log.url, "flow", "stage", "--format", "jsonl")
    assert result.exit_code == 1
    assert path.name in result.stderr


def test_lists_show_rows_bytes_and_ends(log: Log, run: Callable[..., Any]) -> None:
    """`ls`, `inspect JOB` and `verify` tell of rows, bytes and how many producers ended."""
    stored = sum(path.stat().st_size for path in Path(log.url).rglob("*.seg"))
    words = "open, 1 of 2 producers ended"
    for command in ("ls", "inspect"):
        assert words in run(command, log.url, "flow").stdout
    (job,) = json.loads(run("ls", log.url, "--json").stdout)["jobs"]
    (stage,) = job["stages"]
    assert (stage["status"], stage["rows"], stage["data_bytes"]) == ("open", 20, stored)
    assert (stage["producers"], stage["producers_ended"]) == (2, 1)
    assert run("ls", log.url).stdout.splitlines()[1].split()[:5] == ["flow", "1", "1", "0", "20"]
    assert f"ok; {words}: 20 rows, " in run("verify", log.url).stdout
    (stage,) = json.loads(run("verify", log.url, "flow", "stage", "--json").stdout)["jobs"][0][
        "stages"
    ]
    assert (stage["status"], stage["producers_ended"], stage["rows"]) == ("open", 1, 20)
    with log.open(1, 3) as other:
        other.end("SUSPEND")
    assert words in run("verify", log.url).stdout
    with log.open(1, 4) as other:
        other.end("DRAIN")
    for command in ("ls", "inspect", "verify"):
        assert "ended, 2 of 2 producers ended" in run(command, log.url, "flow").stdout
    release_stage_of(log.job, log.stage.storage, log.stage.path, log.ids)
    for command in ("ls", "inspect", "verify"):
        result = run(command, log.url, "flow")
        assert (result.exit_code, "released" in result.stdout) == (0, True)
        assert "log, " not in result.stdout


def test_lists_tell_of_a_damaged_log(log: Log, run: Callable[..., Any]) -> None:
    """A damaged record of a producer's log is shown in its stage's line and found by verify."""
    path = Path(log.url, log.stage.producer_log(0).key(1))
    path.write_bytes(path.read_bytes()[:-1])
    assert "corrupt_data" in run("ls", log.url, "flow").stdout
    result = run("verify", log.url)
    assert (result.exit_code, path.name in result.stdout) == (1, True)


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("ls", "flow"),
        ("inspect", "flow"),
        ("inspect", "flow", "stage"),
        ("verify",),
        ("cat", "flow", "stage", "--format", "csv"),
    ],
)
def test_each_slot_is_read_once(
    log: Log, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any], words: tuple[str, ...]
) -> None:
    """One walk per producer's log: every record once, and once the empty slot behind them."""
    keys: list[str] = []

    class Watched(CountingStorage):
        def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
            keys.append(key)
            return super().read(key, most_bytes)

    watched = Watched(LocalStorage(log.url))
    monkeypatch.setattr("durable_shuffle.jobs.cli.call.open_storage", lambda *_, **__: watched)
    assert run(words[0], log.url, *words[1:]).exit_code == 0
    for producer, records in ((0, 6), (1, 2)):
        slots = log.stage.producer_log(producer)
        found = [key for key in keys if key.startswith(slots.prefix)]
        assert found == [slots.key(slot) for slot in range(records + 1)]
