"""Coordinators that follow one another, and what a new one finds: with real logs, without tasks."""

import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from operated import NAME, make
from pipeline_steps import ROWS

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.recovery.pipeline.commands.emitter import Emitter
from durable_shuffle.recovery.pipeline.commands.orders import (
    LEAD_EVERY,
    Answered,
    ApplySettings,
    InternalCommand,
    Lead,
    StartTasks,
    decode_slot,
)
from durable_shuffle.recovery.pipeline.commands.requests import (
    REQUESTS,
    ChangeSettings,
    Description,
    DropPart,
    Reconcile,
    RestartPart,
    RunThis,
    StopIt,
)
from durable_shuffle.recovery.pipeline.coordinator.logs import PipelineLogs
from durable_shuffle.recovery.pipeline.coordinator.stage_work import first_look
from durable_shuffle.recovery.pipeline.plan.updates import PreparedPlan
from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    NotReadyError,
)
from durable_shuffle.shuffle.base.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings as ShuffleSettings
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.consume.open_view import Beginning, open_view
from durable_shuffle.shuffle.log.layout import ConsumerPath, command_log_prefix
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.position import unpack_positions
from durable_shuffle.shuffle.release.gc import judge_rest
from durable_shuffle.shuffle.rows.partitioner import hash_partition_ids
from durable_shuffle.shuffle.storage.contract import ObjectInfo
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.write.log_producer import LogProducer

IDS = RandomIds()
GIVEN = Description("operated:make", "", "given", "digest")


class Place:
    """A pipeline's storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = LocalStorage(folder / "data")

    def logs(self, given: Description = GIVEN, **more: Any) -> PipelineLogs:
        """A coordinator that has not claimed yet."""
        plan = make(str(self.folder), **{"tags": {"copy": 1}, **more}).plan
        return PipelineLogs(plan, given, packages={"operated"}, clock=SystemClock(), ids=IDS)

    @property
    def client(self) -> PipelineClient:
        return PipelineClient(NAME, str(self.folder / "data"), wait_seconds=0)

    @property
    def commands(self) -> list[InternalCommand]:
        log = SlotLog(self.storage, command_log_prefix(NAME))
        steps = [decode_slot(data, name="x") for _, data in log.read_from()]
        return [command for step in steps for command in step.commands]

    def acks(self, request: int) -> list[Answered]:
        found = (c for c in self.commands if isinstance(c, Answered))
        return [one for one in found if one.request == request]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def claimed(logs: PipelineLogs) -> PreparedPlan:
    prepared = logs.claim().prepared
    assert prepared is not None
    return prepared


def answer_all(logs: PipelineLogs) -> None:
    while (request := logs.next_request()) is not None:
        logs.answer(request, request.error, "", ())


@pytest.mark.requirement("R-MZ-2")
def test_of_four_coordinators_one_emits(place: Place) -> None:
    """All of them see the request; one command comes of it."""
    four = [place.logs() for _ in range(4)]
    for logs in four:
        logs.claim()
    request = place.client.append(RestartPart(IDS.new_id(), "copy", "x"))
    fenced = 0
    barrier = threading.Barrier(4)

    def coordinate(logs: PipelineLogs) -> None:
        nonlocal fenced
        barrier.wait(300)
        try:
            answer_all(logs)
        except FencedError:
            fenced += 1

    threads = [threading.Thread(target=coordinate, args=(logs,)) for logs in four]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fenced == 3
    assert len(place.acks(request)) == 1


@pytest.mark.requirement("R-MZ-2")
@pytest.mark.parametrize("paused", ["before it reads", "before it answers", "behind its answer"])
def test_a_request_leads_to_one_command_wherever_the_older_one_is_paused(
    place: Place, paused: str
) -> None:
    """It had begun to handle it. What it had not said by then it never says."""
    older, newer = place.logs(), place.logs()
    older.claim()
    request = place.client.append(ChangeSettings(IDS.new_id(), {"commit_rows": 5}))
    said: tuple[InternalCommand, ...] = (ApplySettings({"commit_rows": 5}),)
    found = older.next_request() if paused != "before it reads" else None
    if paused == "behind its answer":
        assert found is not None
        older.answer(found, None, "", said)
    newer.claim()
    if paused == "before it answers":
        assert found is not None
        with pytest.raises(FencedError):
            older.answer(found, None, "", said)
    with pytest.raises(FencedError):
        answer_all(older)
    again = newer.next_request()
    assert (again is None) is (paused == "behind its answer")
    if again is not None:
        assert again.slot == request
        newer.answer(again, None, "", said)
    assert len(place.acks(request)) == 1
    assert sum(isinstance(command, ApplySettings) for command in place.commands) == 1
    assert newer.next_request() is None


@pytest.mark.requirement("R-ARR-19")
def test_a_claim_that_never_leads_ends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older coordinator is always faster: after so many tries the error says so."""
    tries = 0

    def slower(self: Emitter, *commands: InternalCommand) -> bool:
        nonlocal tries
        tries += 1
        return False

    monkeypatch.setattr(Emitter, "begin", slower)
    with pytest.raises(ConflictError, match="was faster 100 times"):
        place.logs().claim()
    assert tries == 100


@pytest.mark.requirement("R-ARR-19")
def test_an_emitter_passes_each_older_record_once(place: Place) -> None:
    """However many an older coordinator has written meanwhile: one try for each, then it leads."""
    older = place.logs()
    older.claim()
    log = SlotLog(place.storage, command_log_prefix(NAME))
    emitter = Emitter(log, "newer", 9, IDS, log.find_end())
    for n in range(20):
        older.emit(ApplySettings({"commit_rows": n + 1}))
    appends = 0
    append = SlotLog.append

    def counted(self: SlotLog, slot: int, record: bytes) -> Any:
        nonlocal appends
        appends += 1
        return append(self, slot, record)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SlotLog, "append", counted)
        slot, _ = emitter.emit(ApplySettings({"commit_rows": 99}))
    assert (slot, appends) == (log.find_end() - 1, 21)


@pytest.mark.requirement("R-MZ-18")
@pytest.mark.parametrize("crash", ["before it is heard", "before it is carried out"])
def test_a_drop_survives_a_crash(place: Place, crash: str) -> None:
    """The successor is described by the older list, and the part stays dropped."""
    more: dict[str, Any] = {"tags": {"copy": 1, "goes": 1}}
    first = place.logs(**more)
    first.claim()
    request = place.client.append(DropPart(IDS.new_id(), "goes"))
    if crash == "before it is carried out":
        answer_all(first)  # and no more of it
    second = place.logs(**more)
    prepared = claimed(second)
    if crash == "before it is heard":
        found = second.next_request()
        assert found is not None
        assert (found.slot, found.handled is not None) == (request, True)
        second.answer(found, None, "", ())
        assert isinstance(found.command, DropPart)
        second.drop(found.command, prepared)
    tasks = [task for task, at in prepared.plan.tasks.items() if at.owner == "goes"]
    for task in tasks:
        path = ConsumerPath(NAME, "goes", task)
        assert read_resume_set(SlotLog(place.storage, path.log_prefix)).finished
    started = second.start(prepared, 2, list(prepared.plan.tasks))
    assert started.finished == frozenset(tasks)
    begin = [c for c in place.commands if isinstance(c, StartTasks)]
    assert not set(begin[-1].tasks) & set(tasks)
    third = place.logs(**more)
    third.claim()
    lead = [c for c in place.commands if isinstance(c, Lead)][-1]
    assert lead.wanted.drops == (), "it was done: nobody has to know of it"


@pytest.mark.requirement("R-MZ-5")
def test_a_list_goes_on_with_the_next_coordinator(place: Place) -> None:
    """What counted when the first one fell counts still; what it did not name is gone."""
    first = place.logs()
    first.claim()
    client = place.client
    client.append(ChangeSettings(IDS.new_id(), {"commit_rows": 5}))
    arguments = f'{{"folder": "{place.folder}", "tags": {{"copy": 9}}}}'
    wanted = RunThis(IDS.new_id(), Description("operated:make", arguments, "listed"))
    client.append(Reconcile(IDS.new_id(), (REQUESTS.encode(wanted),)))
    answer_all(first)
    for _ in range(3):  # each knows it from the one before
        found = place.logs().claim()
        assert found.prepared is not None
        assert found.prepared.description.version == "listed"
        assert not found.settings


def test_who_brings_the_same_goes_on_with_what_was_asked_for(place: Place) -> None:
    """And who brings something else thereby asks for that."""
    arguments = f'{{"folder": "{place.folder}", "tags": {{"copy": 9}}}}'
    first = place.logs()
    first.claim()
    place.client.append(RunThis(IDS.new_id(), Description("operated:make", arguments, "asked")))
    place.client.append(ChangeSettings(IDS.new_id(), {"commit_rows": 5}))
    answer_all(first)
    again = place.logs()
    found = again.claim()
    assert found.prepared is not None
    assert found.prepared.description.version == "asked"
    assert found.settings == {"commit_rows": 5}
    new = Description("operated:make", "", "new", "another digest")
    assert claimed(place.logs(new)).description.version == "new"
    for given in (new, GIVEN, GIVEN):  # what was asked for of the first does not rise again
        assert claimed(place.logs(given)).description == given


def test_a_stop_for_a_run_that_is_over_is_refused(place: Place) -> None:
    """Nobody who starts a pipeline finds it stopped by an old word; a drop still counts."""
    place.logs().claim()
    stop = place.client.append(StopIt(IDS.new_id(), StopMode.CANCEL))
    drop = place.client.append(DropPart(IDS.new_id(), "nobody"))
    second = place.logs()
    second.claim()
    answer_all(second)
    assert [ack.refused for ack in place.acks(stop)] == ["invalid_input"]
    assert "ask again" in place.acks(stop)[0].text
    assert [ack.refused for ack in place.acks(drop)] == [""]


def test_a_successor_never_reads_far(place: Place) -> None:
    """However many commands there were, LEAD is near."""
    logs = place.logs()
    logs.claim()
    for n in range(3 * LEAD_EVERY):
        place.client.append(ChangeSettings(IDS.new_id(), {"commit_rows": n + 1}))
    answer_all(logs)
    leads = [n for n, c in enumerate(place.commands) if isinstance(c, Lead)]
    assert len(leads) == 4
    second = place.logs()
    assert second.claim().settings == {"commit_rows": 3 * LEAD_EVERY}


def test_a_command_log_without_its_beginning_is_refused(place: Place) -> None:
    """By name; so is one with a hole."""
    log = SlotLog(place.storage, command_log_prefix(NAME))
    log.append(0, b"rubbish")
    with pytest.raises(CorruptDataError, match="operated/commands/0000000000"):
        place.logs().claim()


@pytest.mark.requirement("R-MZ-4")
def test_all_tasks_begin_where_the_command_says(place: Place) -> None:
    """The storage goes on between two tasks' beginnings; both begin at the same moment."""
    logs = place.logs(tags={"late": 1}, starts={"late": "latest"})
    prepared = claimed(logs)
    stage = prepared.stage(place.storage, "numbers")
    with LogProducer.open(
        stage, 0, record_id=IDS.new_id(), generation=1, settings=ShuffleSettings()
    ) as writing:
        _write(stage, writing, 0, 50)
        tasks = [task for task, at in prepared.plan.tasks.items() if at.owner == "late"]
        logs.start(prepared, 1, list(prepared.plan.tasks))
        start = next(c for c in place.commands if isinstance(c, StartTasks))
        found: list[int] = []
        for k, task in enumerate(tasks):
            _write(stage, writing, 50 * (k + 1), 50 * (k + 2))
            positions = unpack_positions(start.positions[task], name=task)
            view = open_view(
                stage,
                k,
                consumer="late",
                task=task,
                begin=Beginning(positions, b"state"),
                generation=1,
                follow_seconds=0,
            )
            found += _read(view)
            view.release()
        _write(stage, writing, 150, 200)
        for k, task in enumerate(tasks):  # what was not read at first comes with the next view
            view = open_view(stage, k, consumer="late", task=task, generation=1, follow_seconds=0)
            found += [n for n in _read(view) if n not in found]
            view.release()
    assert sorted(found) == list(range(50, 200))
    later = first_look(prepared, place.storage, tasks)
    assert later.positions == {}, "they have begun"


def _write(stage: StageHandle, log: LogProducer, start: int, stop: int) -> None:
    batch = pa.RecordBatch.from_pydict({"n": list(range(start, stop))}, schema=ROWS)
    log.append([(batch, hash_partition_ids([batch.column(0)], 2))], str(stop).encode())


def _read(view: Any) -> list[int]:
    found: list[int] = []
    with suppress(NotReadyError):  # there is no more for now
        for batch in view:
            found += batch.column(0).to_pylist()
    return found


def test_a_clean_up_leaves_the_logs_of_a_pipeline_alone(place: Place) -> None:
    """They are slots of logs; what is not one is nobody's."""
    keys = [f"{NAME}/{log}/0000000000" for log in ("commands", "requests", "status", "orders")]
    found = judge_rest(
        NAME, [ObjectInfo(key, 1, 0.0) for key in keys], [], now=1e9, older_than_seconds=0
    )
    verdicts = {one.key: one.verdict for scope in found for one in scope.objects}
    assert verdicts == dict(zip(keys, ["live", "live", "live", "unknown"], strict=True))
