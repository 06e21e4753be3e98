"""What user functions open outside of their arguments is seen, and nothing else."""

import colorsys
import contextlib
import ctypes
import glob
import importlib
import io
import os
import socket
import sqlite3
import subprocess
import sys
import sysconfig
import tempfile
import threading
import urllib.request
import zoneinfo
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base import outside
from durable_shuffle.shuffle.base.outside import watching
from durable_shuffle.shuffle.log.stage import StageHandle, read_state
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.producer import ProducerResult, run_producer
from durable_shuffle.shuffle.write.segments import IdBatch


def in_thread(work: Callable[[], object]) -> None:
    """Run it in another thread, to the end."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def connect() -> None:
    """Try to reach a port that nobody listens at."""
    with socket.socket() as one:
        one.settimeout(1)
        one.connect_ex(("127.0.0.1", 9))


def ask() -> None:
    """Ask nobody, with credentials."""
    with contextlib.suppress(OSError):
        urllib.request.urlopen("http://me:secret@127.0.0.1:9/x?token=abc", timeout=1)


def both(path: Path) -> None:
    """Write a file and read it."""
    path.write_text("1")
    path.read_text()


def own_folder(path: Path) -> list[Path]:
    """Make a folder and list it."""
    path.mkdir()
    return list(path.iterdir())


def pooled(path: Path) -> None:
    """Read a file in a pool's thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: path.read_text()).result()


class Rates:
    """A table with a version of its own."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> str:
        return self.file.read_text()

    def durable_identity(self) -> str:
        return "rates of May"


def taken(rates: Rates) -> str:
    return rates.file.read_text()


SEEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "open": (lambda f: f.open().close(), "rates.json"),
    "os.open": (lambda f: os.close(os.open(f, os.O_RDONLY)), "rates.json"),
    "append and read": (lambda f: f.open("a+").close(), "rates.json"),
    "numpy": (lambda f: np.fromfile(f), "rates.json"),
    "a folder": (lambda f: list(f.parent.iterdir()), ""),
    "glob": (lambda f: glob.glob(f"{f.parent}/*"), ""),  # noqa: PTH207
    "a thread": (lambda f: in_thread(lambda: f.read_text()), "rates.json"),
    "a thread of a thread": (
        lambda f: in_thread(lambda: in_thread(lambda: f.read_text())),
        "rates.json",
    ),
    "a pool": (pooled, "rates.json"),
    "a program": (lambda _: subprocess.run([sys.executable, "-c", ""], check=True), "the program"),
    "a command": (lambda _: os.system("true"), "a command"),
    "a library": (lambda _: ctypes.CDLL("libc.so.6"), "the library libc.so.6"),
    "a database": (lambda f: sqlite3.connect(f.with_name("d")).close(), "/d"),
    "a function that takes an object which has an identity": (
        lambda f: taken(Rates(f)),
        "rates.json",
    ),
    "a service": (lambda _: connect(), "the service"),
    "an address": (lambda _: ask(), "the address http://***@127.0.0.1:9/x?token=***"),
}
UNSEEN: dict[str, Callable[[Path], object]] = {
    "memory": lambda _: io.BytesIO(b"1").read(),
    "an import": lambda _: importlib.reload(colorsys),
    "source": lambda _: Path(str(colorsys.__file__)).read_text(),
    "a written file": lambda f: f.write_text("1"),
    "an appended file": lambda f: f.open("a").close(),
    "a file that it made": lambda f: both(f.with_name("own")),
    "an unnamed file": lambda _: tempfile.TemporaryFile().close(),
    "a named one": lambda _: tempfile.NamedTemporaryFile().close(),
    "a folder that it made": lambda f: own_folder(f.with_name("n")),
    "the process itself": lambda _: ctypes.CDLL(None),
    "a database in memory": lambda _: sqlite3.connect(":memory:").close(),
    "a zone": lambda _: zoneinfo.ZoneInfo.no_cache("Asia/Tokyo"),
    "nothing to read": lambda _: Path("/dev/null").read_text(),
    "a thread that computes": lambda _: in_thread(lambda: sum(range(9))),
    "what an object stands for": lambda f: Rates(f).read(),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file outside."""
    path = tmp_path / "rates.json"
    path.write_text("{}")
    return path


@pytest.mark.parametrize("name", SEEN)
def test_what_is_opened_is_seen(file: Path, name: str) -> None:
    """Files, folders, libraries, programs and services, in any thread, without credentials."""
    act, text = SEEN[name]
    with watching() as watch:
        act(file)
    found = " ".join(watch.found)
    assert text in found
    assert ("/" in found) or text
    assert "secret" not in found
    assert "abc" not in found


@pytest.mark.parametrize("name", UNSEEN)
def test_what_counts_otherwise_is_not_seen(file: Path, name: str) -> None:
    """Code, zones, what is only written and what the function made by itself."""
    with watching() as watch:
        UNSEEN[name](file)
    assert list(watch.found) == []


def test_nothing_is_seen_outside_of_a_watch(file: Path) -> None:
    """Before, after, and by threads that installed packages have for themselves."""
    file.read_text()
    gate, done = threading.Event(), threading.Event()
    space: dict[str, Any] = {"__name__": "installed"}
    text = "def read(path, gate, done):\n    gate.wait(10)\n    open(path).close()\n    done.set()"
    exec(compile(text, f"{sysconfig.get_paths()['purelib']}/installed.py", "exec"), space)
    other = threading.Thread(target=space["read"], args=(file, gate, done))
    other.start()
    with watching() as watch:
        gate.set()
        assert done.wait(10)
    other.join()
    file.read_text()
    assert list(watch.found) == []


def test_two_watches_at_once_see_their_own_threads(file: Path) -> None:
    """One of two threads reads, and its watch alone tells so."""
    found: dict[str, list[str]] = {}
    meet = threading.Barrier(2, timeout=10)

    def run(name: str, act: Callable[[], object]) -> None:
        with watching() as watch:
            meet.wait()
            act()
            meet.wait()
        found[name] = list(watch.found)

    threads = [
        threading.Thread(target=run, args=("reads", file.read_text)),
        threading.Thread(target=run, args=("computes", lambda: 1)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"reads": [str(file)], "computes": []}


def test_own_storage_is_not_counted_and_functions_above_it_are(file: Path) -> None:
    """A storage that reads for the library is its own; a function that it calls is the user's."""
    storage = LocalStorage(str(file.parent))
    with watching() as watch:
        assert bytes(storage.read("rates.json")) == b"{}"
    assert list(watch.found) == []
    calls = ModuleType("durable_shuffle.jobs.python_stage.made_up")
    exec("def call(f): return f()", vars(calls))
    with watching() as watch:
        calls.call(file.read_text)
    assert list(watch.found) == [str(file)]


def test_an_event_that_cannot_be_told_is_told_as_such() -> None:
    """Arguments that make no sense raise nothing in the user's call, and do not go unseen."""
    with watching() as watch:
        outside._tell("open", ("one",), sys._getframe())
    assert list(watch.found) == ["what an event open stands for"]


class RefusesCommits(MemoryStorage):
    """Takes no record of the producer's log."""

    refused = ""

    def put_if_absent(self, key: str, data: bytes) -> Any:
        if self.refused and key.startswith(self.refused):
            raise UnavailableError("refused")
        return super().put_if_absent(key, data)


def store(stage: StageHandle, rows: Iterator[IdBatch], attempt: str) -> ProducerResult:
    """Run one attempt, as of a user function."""
    settings = {"attempt": attempt, "producers": 1, "settings": SMALL, "watch": True}
    return run_producer(stage, 0, rows, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("reads", [True, False])
def test_unrecognised_stands_before_the_commit(ids: SeededIds, file: Path, reads: bool) -> None:
    """A producer whose rows come from a file says so, even if its COMMIT never arrives."""
    schema = pa.schema([("a", pa.int64())])
    storage = RefusesCommits()
    stage = new_stage(storage, ids, schema, partitions=1)

    def rows() -> Iterator[IdBatch]:
        if reads:
            file.read_text()
        yield pa.record_batch([pa.array([1])], schema), np.zeros(1, np.uint16)

    storage.refused = stage.producer_log(0).key(0)[:-6]
    with pytest.raises(UnavailableError):
        store(stage, rows(), ids.new_id())
    told = read_state(stage).unrecognised
    assert told == ((f"{file}, opened by a Python function",) if reads else ())
    storage.refused = ""
    assert store(stage, rows(), ids.new_id()).won
    assert read_state(stage).unrecognised == told
