"""Records that say what no writer writes, with right checksums: commands name them as damage."""

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from forged_record import Change, forge
from small_log import SCHEMA, numbered_rows
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.jobs.reports.job_history import read_history
from durable_shuffle.jobs.streaming.schemas import stored_schema
from durable_shuffle.serialization.arrow_schemas import schema_to_bytes
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.release.stages import release_done
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.stream.scan import newest_message
from durable_shuffle.shuffle.write.log_producer import LogProducer

Run = Callable[..., Any]
PARTITIONS = 3
VERIFY, CAT, LS, INSPECT = ("verify",), ("cat", "orders"), ("ls",), ("inspect", "orders")


def told(run: Run, url: str, job: str, key: str, commands: Sequence[tuple[str, ...]]) -> None:
    """All commands name the key; none of them ends as a defect of its own."""
    for name, *rest in commands:
        result = run(name, url, job, *rest)
        assert "defect" not in result.output, result.output
        assert key in result.output, (name, result.output)


def with_segment(**changed: int) -> Change:
    """The first segment of a record says something else."""

    def change(fields: dict[str, Any]) -> dict[str, object]:
        first, *others = fields["segments"]
        return {"segments": [{**first, **changed}, *others]}

    return change


@pytest.mark.parametrize("seconds", [1e300, math.nan, math.inf, -1.0])
def test_a_stage_that_was_made_at_no_time(job: Any, run: Run, seconds: float) -> None:
    key = forge(job.orders.log(), 0, lambda _: {"created_wall_seconds": seconds})
    told(run, job.url, "nightly", key, (LS, INSPECT, VERIFY))


@pytest.mark.parametrize("field", ["number", "length"])
@pytest.mark.parametrize("value", [-1, 2**40, 2**63])
def test_a_segment_that_cannot_be(job: Any, run: Run, field: str, value: int) -> None:
    """A length of 2**40 can be; then the segment is found to be shorter."""
    log = job.orders.producer_log(0)
    forge(log, 0, with_segment(**{field: value}))
    possible = field == "length" and value == 2**40
    named = job.orders.path.segments_prefix if possible else log.key(0)
    told(run, job.url, "nightly", named, (VERIFY,))


@pytest.mark.parametrize("producer", [-1, 1 << 24])
def test_a_commit_of_a_producer_that_cannot_be(job: Any, run: Run, producer: int) -> None:
    key = forge(job.orders.producer_log(0), 0, lambda _: {"producer": producer})
    told(run, job.url, "nightly", key, (VERIFY,))


def test_a_stage_without_partitions(job: Any, run: Run) -> None:
    key = forge(job.orders.log(), 0, lambda _: {"partitions": 0})
    told(run, job.url, "nightly", key, (VERIFY, CAT, INSPECT))


@pytest.mark.parametrize(
    "stray", ["x", "p000000/x", "p000000/x/0000000001", "p/0000000000", "px/0000000001", "p1/1"]
)
@pytest.mark.parametrize("name", ["orders", "unsealed"])
def test_a_stray_object_among_the_logs(job: Any, run: Run, stray: str, name: str) -> None:
    """It is nobody's slot; reports leave it out."""
    stage = getattr(job, name)
    path = Path(job.url, stage.path.producers_prefix, stray)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    assert run("inspect", job.url, "nightly", stage.path.folder, "--json").exit_code == 0
    history = read_history(LocalStorage(job.url), "nightly")
    assert [stage.error for stage in history.stages] == [None] * 3


@pytest.mark.timeout(60)
@pytest.mark.parametrize("slot", [9_999_999_999, 10**30])
def test_a_stray_object_far_behind_the_job_log(job: Any, run: Run, slot: int) -> None:
    """A repair does not fill ten thousand million slots; it says which object is in the way."""
    key = f"nightly/log/{slot}"
    Path(job.url, key).write_bytes(b"")
    before = sorted(Path(job.url, "nightly", "log").iterdir())
    told(run, job.url, "nightly", key, (VERIFY, ("verify", "--repair")))
    assert sorted(Path(job.url, "nightly", "log").iterdir()) == before
    Path(job.url, key).unlink()
    assert run("verify", job.url, "nightly").exit_code == 0


@pytest.mark.timeout(60)
def test_a_stray_producer_of_a_damaged_stage(job: Any, run: Run) -> None:
    """A release closes the logs of producers that something names, not all numbers below."""
    Path(job.url, job.orders.log().key(1)).write_bytes(b"damaged")
    stray = Path(job.url, job.orders.path.producers_prefix, "p99999999999", "x")
    stray.parent.mkdir()
    stray.write_bytes(b"")
    assert run("release", job.url, "nightly", "orders", "--yes").exit_code == 0
    assert release_done(LocalStorage(job.url), job.orders.path)


@pytest.fixture
def log_stage(tmp_path: Path, seed: int) -> StageHandle:
    """A stage of two log producers; 0 appended twice and 1 once."""
    ids, storage = SeededIds(random.Random(seed)), LocalStorage(tmp_path)
    job = JobLog.claim(storage, "flow", ids.new_id())
    stage = new_stage(
        storage, ids, SCHEMA, partitions=PARTITIONS, producers=2, writing="log", job="flow"
    )
    path = stage.path
    names = path.name, path.fingerprint, path.incarnation
    job.append(StageUse(ids.new_id(), job.generation, *names))
    for p, appends in ((0, 2), (1, 1)):
        how: Any = {"record_id": ids.new_id(), "generation": 1, "settings": SMALL}
        with LogProducer.open(stage, p, **how) as producer:
            for n in range(appends):
                producer.append(numbered_rows(9 * n, 9 * n + 9, PARTITIONS), b"")
    return stage


@pytest.mark.parametrize(
    "said", [{"producers": 0}, {"partitioner": "passthrough"}, {"partitions": 0}]
)
def test_a_stage_of_log_producers_that_cannot_be(
    log_stage: StageHandle, run: Run, tmp_path: Path, said: dict[str, object]
) -> None:
    key = forge(log_stage.log(), 0, lambda _: said)
    told(run, str(tmp_path), "flow", key, (VERIFY, ("cat", "stage"), ("inspect", "stage"), LS))


def test_a_description_of_a_batch_stage_becomes_one_of_a_log(job: Any, run: Run) -> None:
    """Slot 0 alone describes a stage."""
    log: SlotLog = job.orders.log()
    forge(log, 0, lambda _: {"writing": "log"}, to=3)
    Path(job.url, log.key(0)).write_bytes(b"damaged")
    told(run, job.url, "nightly", log.key(0), (("gc",),))


ADDED = [pa.field("new", pa.int64())]


@pytest.mark.parametrize(
    "fields",
    [
        [pa.field("other", pa.int64()), SCHEMA.field(1), *ADDED],
        [SCHEMA.field(1), SCHEMA.field(0)],
        [SCHEMA.field(0)],
        [SCHEMA.field(0), pa.field("v", pa.int64())],
    ],
)
def test_rows_in_a_schema_that_is_not_the_stages(
    log_stage: StageHandle, run: Run, tmp_path: Path, fields: list[pa.Field]
) -> None:
    """Else their columns would be read as null: those that rows were stored in come first."""
    forge(log_stage.producer_log(0), 1, lambda _: {"schema": schema_to_bytes(pa.schema(fields))})
    log = forge(
        log_stage.producer_log(1), 1, lambda _: {"schema": schema_to_bytes(pa.schema(fields))}
    )
    told(run, str(tmp_path), "flow", "begin with that of", (VERIFY, ("cat", "stage")))
    for k in range(PARTITIONS):
        with (
            pytest.raises(CorruptDataError, match="begin with that of"),
            open_view(log_stage, k, consumer="reader", follow_seconds=1) as view,
        ):
            next(iter(view))
    with pytest.raises(CorruptDataError, match=log):
        newest_message(log_stage)


@pytest.mark.parametrize("columns", [["k"], ["k", "v", "other"]])
def test_columns_that_are_not_those_of_the_schema(
    log_stage: StageHandle, columns: list[str]
) -> None:
    """Spark is told of the damage when it asks for the columns."""
    key = forge(log_stage.log(), 0, lambda _: {"columns": columns})
    stage = open_stage(log_stage.storage, log_stage.path)
    with pytest.raises(CorruptDataError, match=key):
        stored_schema(stage, stage.describe.schema)
