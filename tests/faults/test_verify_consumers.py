"""`verify` and `inspect` on consumers: every damage is found and named, and nothing else is."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest
from stored_job import stored_stage

from durable_shuffle.serialization.control import bound
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.storage.contract import StorageLayer
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.verify.job import verify_job

T = TypeVar("T")

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A job whose consumer `one` has finished partition 0 and is in the middle of partition 1."""
    storage = LocalStorage(tmp_path)
    log = JobLog.claim(storage, "nightly", RandomIds().new_id())
    stage = stored_stage(log, storage, job="nightly", rows=(2000, 1500))
    for k in (0, 1):
        view = open_view(
            stage, k, consumer="one", settings=Settings(inline_state_bytes=8, frame_bytes=2048)
        )
        for n, batch in enumerate(view):
            output = write_output(view.task, SCHEMA, [batch.select(["id"])])
            view.ack(outputs=[output], state=b"a state of its own object")
            if k == 1 and n == 1:
                break
        else:
            view.finish()
    return tmp_path


def task(root: Path, k: int) -> Path:
    (folder,) = (root / "nightly" / "consumers" / "one").glob(f"*-k{k:06d}")
    return folder


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def slots(root: Path, k: int) -> list[Path]:
    return sorted(p for p in task(root, k).iterdir() if p.is_file() and p.name.isdigit())


def below(root: Path, k: int, folder: str) -> list[Path]:
    return sorted((task(root, k) / folder).iterdir())


def test_intact_consumers(root: Path) -> None:
    """No finding; records, outputs and the end are told per task."""
    report = verify_job(LocalStorage(root), "nightly", Settings())
    assert report.findings == ()
    done, open_ = report.consumers
    assert (done.finished, done.records) == (True, 875)  # rows 0, 4, 8, … of 2000 and of 1500
    assert (open_.finished, open_.outputs) == (False, 2)
    assert done.outputs == len(below(root, 0, "outputs"))
    assert done.objects == len(slots(root, 0)) + done.outputs + 1  # its state


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
@pytest.mark.parametrize(
    ("victim", "k"),
    [
        (lambda root: slots(root, 0)[0], 0),
        (lambda root: slots(root, 0)[1], 0),
        (lambda root: slots(root, 1)[1], 1),
        (lambda root: below(root, 0, "outputs")[0], 0),
        (lambda root: below(root, 1, "outputs")[1], 1),
        (lambda root: below(root, 1, "state")[0], 1),
    ],
    ids=["first slot", "ACK behind FINISHED's", "ACK", "output", "output of an open one", "state"],
)
def test_damage_is_named(
    root: Path, victim: Callable[[Path], Path], k: int, damage: Callable[[Path], None]
) -> None:
    """Each object that counts, flipped, cut or gone: a finding with its key, and none elsewhere."""
    path = victim(root)
    damage(path)
    key = path.relative_to(root).as_posix()
    report = verify_job(LocalStorage(root), "nightly", Settings())
    assert {finding.key for finding in report.findings} == {key}
    kind = "corrupt_data" if path.exists() else "not_found"
    assert {finding.kind.value for finding in report.findings} == {kind}
    assert [bool(one.findings) for one in report.consumers] == [k == 0, k == 1]
    assert report.consumers[0].finished, "FINISHED stands for itself, whatever is before it"


def test_a_record_that_cannot_stand_there(root: Path) -> None:
    """An ACK of another view, bound to its place: intact, and still a finding."""
    (here, key), (there, other) = (
        (p, p.relative_to(root).as_posix()) for p in (slots(root, 1)[1], slots(root, 0)[1])
    )
    here.write_bytes(bound(bound(there.read_bytes(), other), key))
    (finding, *_) = verify_job(LocalStorage(root), "nightly", Settings()).findings
    assert finding.key.endswith("k000001/0000000001")
    assert "stands behind the OPEN of view" in finding.found


def test_objects_that_no_record_names_are_no_finding(root: Path) -> None:
    """What a killed consumer left is garbage, not damage."""
    (task(root, 1) / "outputs" / ("f" * 32)).write_bytes(b"left behind")
    (root / "nightly" / "consumers" / "one" / "stray").write_bytes(b"")
    assert verify_job(LocalStorage(root), "nightly", Settings()).ok


@pytest.fixture
def command(root: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line in a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        code = "from durable_shuffle.jobs.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, arguments[0], str(root), "nightly", *arguments[1:]],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "200"},
        )

    return run


def test_the_commands_show_consumers(
    root: Path, command: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """`inspect` sums up per consumer; `verify` explains a corrupt record with its slot."""
    (consumer,) = json.loads(command("inspect", "--json").stdout)["consumers"]
    assert (consumer["consumer"], consumer["tasks"], consumer["finished"]) == ("one", 2, 1)
    assert consumer["stage"].startswith("stage-")
    assert (consumer["epoch"], consumer["errors"]) == (1, [])
    head = command("inspect").stdout.splitlines()[-2]
    assert head.split()[:5] == ["CONSUMER", "TASKS", "FINISHED", "EPOCH", "RECORDS"]
    assert ": ok; finished: 875 records" in command("verify").stdout
    flip(slots(root, 1)[-1])
    done = command("verify")
    assert done.returncode == 1
    assert "k000001/0000000002 bytes=[0, " in done.stdout
    (whole, damaged) = json.loads(command("inspect", "--json").stdout)["consumers"]
    assert (whole["tasks"], damaged["tasks"], damaged["stage"]) == (1, 1, None)
    assert "0000000002" in damaged["errors"][0]


class Meets(StorageLayer):
    """Lets something happen once, before one of the calls."""

    def __init__(self, storage: MemoryStorage, when: int, meet: Callable[[], object]) -> None:
        super().__init__(storage)
        self.left = when
        self.meet: Callable[[], object] | None = meet

    def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
        if self.meet is not None:
            self.left -= 1
            if self.left < 0:
                meet, self.meet = self.meet, None
                meet()
        return request()


def test_a_consumer_that_acknowledges_meanwhile_is_no_damage() -> None:
    """It deletes the state that its newer record no longer names, before any call of verify."""
    points, ids = 0, RandomIds()
    for when in itertools.count():
        store = MemoryStorage()
        driver = JobLog.claim(store, "job", ids.new_id())
        stage = stored_stage(driver, store, job="job", rows=(20, 10), ids=ids)
        view = open_view(stage, 0, consumer="c", ids=ids, settings=Settings(inline_state_bytes=0))
        next(iter(view))
        view.ack(state=b"one" * 100)
        met = Meets(store, when, lambda view=view: view.ack(state=b"two" * 100))
        assert verify_job(met, "job", Settings()).ok
        if met.meet is not None:
            break
        points += 1
    assert points > 20
