"""Consumers as processes: stopped, killed, and killed again; the output stays right.

Outputs are read from the records that won their slots, without the library's codecs.
"""

import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from consumer_worker import (
    OUTPUT,
    ConsumerJob,
    ConsumerProcess,
    ConsumerServer,
)
from sealed_stage import (
    SealedStage,
    left_over,
    sealed_stage,
    slots_of,
)
from small_stage import SeededIds

from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.local import LocalStorage

Spawn = Callable[[ConsumerJob], ConsumerProcess]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsumerServer]:
    """Forks consumers."""
    with ConsumerServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def made(tmp_path: Path, ids: SeededIds) -> SealedStage:
    """Two producers with 30 rows each for one consumer, on local files."""
    return sealed_stage(LocalStorage(tmp_path), ids, producers=2, partitions=1, rows=30)


@pytest.fixture
def job(tmp_path: Path, made: SealedStage) -> ConsumerJob:
    return ConsumerJob(str(tmp_path), made.stage.path)


@pytest.fixture
def spawn(server: ConsumerServer) -> Iterator[Spawn]:
    """Start consumers; they are killed at the end."""
    started: list[ConsumerProcess] = []

    def start(what: ConsumerJob) -> ConsumerProcess:
        started.append(server.start(what))
        return started[-1]

    yield start
    for process in started:
        process.close()


def published(storage: Storage, consumer: str = "c") -> list[int]:
    """The numbers in outputs that won records name, in the order of the log."""
    keys: dict[str, None] = {}
    for _, fields in slots_of(storage, consumer):
        keys.update(dict.fromkeys(output["key"] for output in fields.get("outputs", ())))
    found: list[int] = []
    for key in keys:
        data = storage.read(key)
        length = int.from_bytes(data[12:16], "little")
        message = pa.ipc.read_message(pa.py_buffer(data[24 : 24 + length]))
        found += pa.ipc.read_record_batch(message, OUTPUT)[0].to_pylist()
    return found


@pytest.mark.requirement("R-F135-27")
@pytest.mark.requirement("R-F135-7")
@pytest.mark.parametrize("resume", ["exact", "approximate"])
def test_consumer_stopped_before_its_acknowledgement_wakes_up_and_commits_nothing(
    made: SealedStage, job: ConsumerJob, spawn: Spawn, resume: str
) -> None:
    """SIGSTOP at the gate, a successor finishes, SIGCONT: the zombie's record loses its slot."""
    job = replace(job, resume=resume)  # type: ignore[arg-type]
    zombie = spawn(replace(job, gate="ack"))
    assert zombie.heard() == {"at": "ack"}
    zombie.signal(signal.SIGSTOP)
    successor = spawn(job).heard()
    assert successor["outcome"] == "finished"
    before, log = published(made.stage.storage), slots_of(made.stage.storage)
    zombie.go()
    zombie.signal(signal.SIGCONT)
    told = zombie.heard()
    assert (told["outcome"], told["epoch"]) == ("FencedError", 1)
    assert slots_of(made.stage.storage) == log
    assert published(made.stage.storage) == before
    if resume == "exact":
        assert before == made.of(0)
        assert len(left_over(made.stage.storage)) == 1  # the zombie's output, which nothing names
    else:
        assert len(before) + successor["dropped"] == len(made.of(0))


@pytest.mark.requirement("R-F135-21")
@pytest.mark.requirement("R-F135-19")
def test_consumer_killed_between_its_output_and_the_acknowledgement_doubles_nothing(
    made: SealedStage, job: ConsumerJob, spawn: Spawn
) -> None:
    """The output is written whole and no record names it: the successor's counts, it does not."""
    files = {i.key for i in made.stage.storage.list(made.stage.path.prefix)}
    killed = spawn(replace(job, gate="ack"))
    assert killed.heard() == {"at": "ack"}
    assert len(left_over(made.stage.storage)) == 1
    killed.signal(signal.SIGKILL)
    assert killed.heard() is None
    assert published(made.stage.storage) == []
    successor = spawn(job).heard()
    assert (successor["outcome"], successor["start"]) == ("finished", 0)
    assert published(made.stage.storage) == made.of(0)
    assert len(left_over(made.stage.storage)) == 1
    assert {i.key for i in made.stage.storage.list(made.stage.path.prefix)} == files


@pytest.mark.requirement("R-F135-15")
def test_consumer_killed_after_its_acknowledgement_resumes_behind_it(
    made: SealedStage, job: ConsumerJob, spawn: Spawn
) -> None:
    """SIGKILL right before the second output: ten rows are done and stay done."""
    calls = spawn(replace(job, consumer="clean")).heard()["calls"]
    starts = set()
    for nth in range(8, calls, 9):
        name = f"c{nth}"
        died = spawn(replace(job, consumer=name, die_at=nth))
        assert died.heard() is None
        told = spawn(replace(job, consumer=name)).heard()
        starts.add(told["start"])
        assert told["start"] % job.rows == 0
        assert published(made.stage.storage, name) == made.of(0)
    assert len(starts) >= 3


@pytest.mark.requirement("R-F135-15")
@pytest.mark.requirement("R-F135-16")
@pytest.mark.requirement("R-F135-21")
@pytest.mark.parametrize(
    "schedules", [15, pytest.param(1000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_output_is_the_input_over_seeded_kill_schedules(
    made: SealedStage, job: ConsumerJob, spawn: Spawn, seed: int, schedules: int
) -> None:
    """Each schedule kills up to three processes at a call of its choice, then one finishes."""
    storage, expected = made.stage.storage, made.of(0)
    kills = resumed = 0
    for number in range(schedules):
        name = f"c{number}"
        chance = random.Random(f"{seed}:{number}")
        resume = chance.choice(["exact", "exact", "approximate"])
        mine = replace(job, consumer=name, resume=resume, rows=chance.randint(10, 40))
        plan = [
            (chance.randint(1, 22), chance.choice(["before", "after"]))
            for _ in range(chance.choice([1, 1, 2, 3]))
        ]
        print(f"seed {seed} schedule {number}: {resume}, rows {mine.rows}, kills {plan}")
        told = None
        for nth, when in [*plan, (0, "before")]:
            process = spawn(replace(mine, die_at=nth, die_when=when))  # type: ignore[arg-type]
            told = process.heard()
            kills += told is None
            process.close()
        assert told is not None
        assert told["outcome"] == "finished", told
        resumed += told["start"] > 0
        found = published(storage, name)
        if resume == "exact":
            assert found == expected
        else:
            assert max(Counter(found).values(), default=1) == 1
            assert len(found) + told["dropped"] == len(expected)
        assert len(left_over(storage, name)) <= len(plan)
    assert kills > schedules / 2
    assert resumed > 0
