"""An intact record that stands in another's place: a restore that was aimed badly, a storage that
mixes two objects up. Whoever reads it must say so, whatever the record would mean there."""

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from littered_job import littered_job
from small_log import SCHEMA, numbered_rows
from small_stage import SMALL, SeededIds, new_stage
from stored_job import stored_stage
from typer.testing import CliRunner

from durable_shuffle.jobs.cli.app import app
from durable_shuffle.serialization.control import bound, decode_control, encode_control
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.layout import (
    ConsumerPath,
    StagePath,
    command_log_prefix,
    job_log_prefix,
    reports_prefix,
    request_log_prefix,
    status_log_prefix,
)
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.slot_log import Lost, SlotLog, Won
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, require_seal
from durable_shuffle.shuffle.read.sealed_reader import read_subpartition
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.stream.scan import read_row_ranges, standing_rows
from durable_shuffle.shuffle.verify.job import verify_job
from durable_shuffle.shuffle.write.log_producer import LogProducer
from durable_shuffle.views import open_view

CONTROL = re.compile(r"job/(.*/)?(log|producers/p\d+|consumers/[^/]+/[^/]+)/\d{10}|.*/index/.*")
STAGE = StagePath("job", "a", "0" * 32, "1" * 32)
OTHER_STAGE = StagePath("job", "a", "0" * 32, "2" * 32)

LOGS = {
    "job": (job_log_prefix("job"), job_log_prefix("other")),
    "stage": (STAGE.log_prefix, OTHER_STAGE.log_prefix),
    "producer": (STAGE.producer_log_prefix(0), STAGE.producer_log_prefix(1)),
    "producer of another stage": (
        STAGE.producer_log_prefix(0),
        OTHER_STAGE.producer_log_prefix(0),
    ),
    "consumer": (
        ConsumerPath("job", "c", "0").log_prefix,
        ConsumerPath("job", "c", "1").log_prefix,
    ),
    "commands": (command_log_prefix("job"), command_log_prefix("other")),
    "requests": (request_log_prefix("job"), request_log_prefix("other")),
    "status": (status_log_prefix("job"), request_log_prefix("job")),
    "reports": (reports_prefix("job", "a"), reports_prefix("job", "b")),
}


@pytest.mark.parametrize(("prefix", "other"), LOGS.values(), ids=LOGS)
def test_a_slot_holds_what_was_appended_there_and_nothing_else(prefix: str, other: str) -> None:
    """In every kind of log: right in its place, damaged in any other slot and log."""
    storage = MemoryStorage()
    record = encode_control("KIND", {"record_id": "a" * 32})
    log = SlotLog(storage, prefix)
    assert log.append(3, record) == Won() == log.append(3, record)
    assert log.append(3, encode_control("KIND", {})) == Lost(record)
    assert log.read(3) == record
    for elsewhere, slot in ((log, 4), (log, 13), (SlotLog(storage, other), 3)):
        key = elsewhere.key(slot)
        storage.put(key, [storage.read(log.key(3))])
        with pytest.raises(CorruptDataError, match=f"{key}: CRC.* another place"):
            decode_control(elsewhere.read(slot) or b"", name=key)


def test_a_record_without_a_place_is_refused() -> None:
    """Whoever passes the log by when writing has written nothing that can be read."""
    storage, record = MemoryStorage(), encode_control("KIND", {})
    storage.put("log/0000000000", [record])
    with pytest.raises(CorruptDataError, match="another place"):
        decode_control(SlotLog(storage, "log/").read(0) or b"", name="log/0000000000")
    assert bound(bound(record, "log/0000000000"), "log/0000000000") == record


def full_job(storage: MemoryStorage, ids: SeededIds) -> None:
    """Batch stages, compacted and repaired, consumers, and a stage of log producers."""
    log = littered_job(storage, ids).log
    stage = new_stage(storage, ids, SCHEMA, partitions=2, producers=2, writing="log")
    path = stage.path
    log.append(
        StageUse(ids.new_id(), log.generation, path.name, path.fingerprint, path.incarnation)
    )
    for p in range(2):
        with LogProducer.open(
            stage, p, record_id=ids.new_id(), generation=log.generation, settings=SMALL
        ) as producer:
            producer.append(numbered_rows(0, 4, 2), b"4")
            producer.append(numbered_rows(4, 10, 2), b"10")
            producer.end("FINITE")


def swaps(keys: list[str], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Each object under the key of a neighbour, of one of the same name elsewhere, of any other."""
    for at, key in enumerate(keys):
        name = key.rsplit("/", 1)[1]
        same = [k for k in keys if k != key and k.endswith(name)]
        yield key, keys[at - 1]
        yield key, rng.choice(same or keys[:at] + keys[at + 1 :])
        yield key, rng.choice(keys[:at] + keys[at + 1 :])


@pytest.mark.soak
def test_verify_names_every_misplaced_record_and_index(ids: SeededIds, seed: int) -> None:
    """Any control record and index of a job in the place of any other of its job or another's."""
    storage = MemoryStorage()
    full_job(storage, ids)
    before = findings(storage)
    named = {k for k in storage._objects if CONTROL.fullmatch(k)}
    named -= {k for k in named if "/index/" in k and not is_read(storage, k)}
    keys, tried = sorted(named), 0
    assert len(keys) > 40, "the job holds too little"
    for wrong, place in swaps(keys, random.Random(seed)):
        right, storage._objects[place] = storage._objects[place], storage._objects[wrong]
        assert place in findings(storage) - before, f"{wrong} stands at {place}"
        storage._objects[place] = right
        tried += 1
    assert tried == 3 * len(keys)
    assert findings(storage) == before


def findings(storage: MemoryStorage) -> set[str]:
    return {finding.key for finding in verify_job(storage, "job", Settings()).findings}


def is_read(storage: MemoryStorage, key: str) -> bool:
    """Whether verify reads this index: it does if its loss is a finding."""
    held = storage._objects.pop(key)
    found = findings(storage)
    storage._objects[key] = held
    return key in found


@dataclass(frozen=True)
class Two:
    """Two sealed stages of one job on a folder, of one schema and with different partitions."""

    root: Path
    one: StageHandle
    two: StageHandle

    def misplace(self, of: Callable[[StageHandle], str]) -> str:
        """Put what stands for stage two where that of stage one is; return its key."""
        place = of(self.one)
        (self.root / place).unlink()
        (self.root / place).write_bytes((self.root / of(self.two)).read_bytes())
        return place


@pytest.fixture
def stages(tmp_path: Path) -> Two:
    storage, ids = LocalStorage(tmp_path), SeededIds(random.Random(1))
    log = JobLog.claim(storage, "job", ids.new_id())
    one = stored_stage(log, storage, job="job", name="one", partitions=3, used_partitions=3)
    two = stored_stage(log, storage, job="job", name="two", partitions=2, used_partitions=2)
    return Two(tmp_path, one, two)


def command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "of",
    [
        lambda stage: stage.log().key(0),
        lambda stage: stage.log().key(1),
        lambda stage: stage.path.index_key(require_seal(stage).index),
    ],
    ids=["DESCRIBE", "SEAL", "index"],
)
def test_readers_refuse_what_belongs_to_another_stage(
    stages: Two, of: Callable[[StageHandle], str]
) -> None:
    """A view, a read without a view, `cat` and `verify`; none of them gives a row less."""
    place = stages.misplace(of)
    storage = LocalStorage(stages.root)

    def read() -> object:
        stage = open_stage(storage, stages.one.path)
        return list(read_subpartition(stage, require_seal(stage), 0, Settings()))

    def view() -> object:
        with open_view(open_stage(storage, stages.one.path), 0, consumer="c") as opened:
            return list(opened)

    for action in (read, view):
        with pytest.raises(CorruptDataError, match=place):
            action()
    for words in (("cat", stages.root, "job", "one"), ("verify", stages.root, "job")):
        code, text = command(*words)
        assert (code, "corrupt_data" in text, place in text) == (1, True, True), text


def test_a_description_of_another_stage_is_refused_by_its_names(stages: Two) -> None:
    """Even bound to the right place, as only a defect of ours could write it."""
    key = stages.one.log().key(0)
    record = bound((stages.root / stages.two.log().key(0)).read_bytes(), stages.two.log().key(0))
    (stages.root / key).write_bytes(bound(record, key))
    with pytest.raises(CorruptDataError, match=f"DESCRIBE tells of another stage: key='{key}'"):
        open_stage(LocalStorage(stages.root), stages.one.path)


def test_a_job_log_of_misplaced_records_is_refused(stages: Two) -> None:
    """A CLAIM in the place of a STAGE hid a stage; nobody reads or claims such a job."""
    storage, key = LocalStorage(stages.root), "job/log/0000000001"
    (stages.root / key).unlink()
    (stages.root / key).write_bytes((stages.root / "job/log/0000000000").read_bytes())
    for action in (
        lambda: read_job(storage, "job"),
        lambda: JobLog.claim(storage, "job", "b" * 32),
    ):
        with pytest.raises(CorruptDataError, match=key):
            action()


def test_a_consumer_does_not_go_on_from_another_tasks_record(stages: Two) -> None:
    """The position of one task is none of another's."""
    storage = LocalStorage(stages.root)
    stage = open_stage(storage, stages.one.path)
    for k in range(2):
        with open_view(stage, k, consumer="c") as opened:
            list(opened)
    logs = sorted((stages.root / "job/consumers/c").iterdir())
    assert len(logs) == 2
    last = sorted(logs[1].iterdir())[-1]
    last.unlink()
    last.write_bytes((logs[0] / last.name).read_bytes())
    with (
        pytest.raises(CorruptDataError, match=f"{logs[1].name}/{last.name}"),
        open_view(stage, 1, consumer="c"),
    ):
        pass


def test_rows_of_a_forged_schema_name_their_stage(ids: SeededIds) -> None:
    """A record can lie about the schema of its rows; whoever reads the rows is told the stage."""
    storage = MemoryStorage()
    stage = new_stage(storage, ids, SCHEMA, partitions=1, writing="log")
    with LogProducer.open(stage, 0, record_id=ids.new_id(), generation=0, settings=SMALL) as rows:
        rows.append(numbered_rows(0, 4, 1), b"4")
    key = stage.producer_log(0).key(1)
    record = decode_control(SlotLog(storage, stage.path.producer_log_prefix(0)).read(1), name=key)
    assert record.kind == "APPEND"
    lie = encode_control(record.kind, {**record.fields, "schema": b"\0" * 128})
    storage.delete([key])
    storage.put(key, [bound(lie, key)])
    for read in (lambda: read_view(stage), lambda: read_batch_pieces(stage)):
        with pytest.raises(CorruptDataError) as caught:
            read()
        assert stage.path.prefix in str(caught.value)


def read_view(stage: StageHandle) -> None:
    """Read what a follower is given first."""
    with open_view(stage, 0, consumer="c") as view:
        next(iter(view))


def read_batch_pieces(stage: StageHandle) -> None:
    """Read the rows as a batch read and a stream do."""
    list(read_row_ranges(stage, standing_rows(stage), SMALL))
