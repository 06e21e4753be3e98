"""Drivers that are killed or stand still anywhere between two requests to S3 over a late network.

A proxy holds one request; then the driver dies, and the request lands or does not, or the driver
stands still while the next one takes over. The rows are a dictionary's, no committed map task runs
again, and verify finds nothing.
"""

import json
import os
import random
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.layout import parse_stage_folder
from durable_shuffle.shuffle.log.producer_log import read_producer
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.testing.fault_proxy import FaultProxy
from durable_shuffle.shuffle.testing.late_network import late_network
from durable_shuffle.shuffle.testing.s3_server import S3Server
from durable_shuffle.shuffle.verify.job import verify_job

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.timeout(3600)]

FILES, ROWS = 4, 400
LEAST_REQUESTS = 40
"""An undisturbed run sends more."""


class Gate(FaultProxy):
    """Holds one request, by its number, until it is told whether it lands."""

    def __init__(self, target: str, number: int) -> None:
        super().__init__(target, seed=1, chance=0.0)
        self._left, self._lands = number, True
        self.reached, self._go = threading.Event(), threading.Event()
        self._count = threading.Lock()

    def draw(self) -> str:
        with self._count:
            self._left -= 1
            mine = self._left == 0
        if mine:
            self.reached.set()
            self._go.wait(600)
            return "" if self._lands else "drop"
        return super().draw()

    def open(self, *, lands: bool) -> None:
        self._lands = lands
        self._go.set()


class Place:
    """A folder of the store, and the ways to it."""

    def __init__(self, server: S3Server, endpoint: str, folder: Path, name: str) -> None:
        self.url = f"s3://{server.bucket}/{name}"
        self._options, self._late = server.options, endpoint
        self.data = folder / "data"
        self.storage: Storage = open_storage(self.url, server.options)
        self.data.mkdir()
        for number in range(FILES):
            ids = range(number, ROWS, FILES)
            table = pa.table({"id": list(ids), "k": [i % 7 for i in ids]})
            pq.write_table(table, self.data / f"{number}.parquet")

    def arguments(self, endpoint: str = "") -> tuple[str, str, str]:
        options = {**self._options, "endpoint_url": endpoint or self._late}
        return self.url, json.dumps(options), str(self.data)

    def committed(self) -> Counter[str]:
        """Return fingerprint -> how many map tasks of a stage have committed, at most."""
        found: Counter[str] = Counter()
        for folder in self.storage.folders("late/"):
            path = parse_stage_folder("late", folder.rstrip("/").rpartition("/")[2])
            if path is None or SlotLog(self.storage, path.log_prefix).read(0) is None:
                continue
            stage = open_stage(self.storage, path)
            logs = (read_producer(stage.producer_log(p)) for p in range(stage.describe.producers))
            done = sum(log.counting() is not None for log in logs)
            found[path.fingerprint] = max(found[path.fingerprint], done)
        return found


def expected() -> dict[str, Any]:
    sums: defaultdict[int, list[int]] = defaultdict(list)
    for i in range(ROWS):
        sums[i % 7].append(i)
    by_count: Counter[int] = Counter()
    for ids in sums.values():
        by_count[len(ids)] += sum(ids)
    return {"rows": sorted(map(list, by_count.items())), "count": ROWS}


def check(place: Place, answer: dict[str, Any], before: Counter[str] | None) -> None:
    """The answer is right, and what had committed before, if that is known, did not run again."""
    assert {name: answer.get(name) for name in ("rows", "count")} == expected(), answer
    assert verify_job(place.storage, "late", Settings()).ok
    if before is None:
        return
    for _, fingerprint, run, all_tasks in answer["stages"]:
        # what was on its way when the driver died may have landed since
        assert run <= all_tasks - before[fingerprint], (answer, before)


@contextmanager
def place_of(server: S3Server, folder: Path, name: str) -> Iterator[Place]:
    with late_network(server.endpoint, 0.03) as late:
        yield Place(server, late.endpoint, folder, name)


def kill_at(
    programs: Any, server: S3Server, folder: Path, number: int, *, lands: bool, stands: bool
) -> None:
    name = f"{folder.name}-{number}-{lands}-{stands}"
    folder = folder / name
    folder.mkdir()
    with place_of(server, folder, name) as place, Gate(place._late, number) as gate:
        first = programs.start("late_driver", *place.arguments(gate.url))
        assert gate.reached.wait(300), "it sent fewer requests"
        before: Counter[str] | None
        if not stands:
            programs.kill(first)
            gate.open(lands=lands)
            before = place.committed()
            print(number, before)
        else:
            os.killpg(first.pid, signal.SIGSTOP)
            before = None  # its workers go on
        check(place, programs.run("late_driver", *place.arguments()), before)
        if stands:
            gate.open(lands=lands)
            os.killpg(first.pid, signal.SIGCONT)
            answer = programs.answer(first)
            if "error" in answer:
                assert answer["error"].startswith("FencedError: another driver took over")
            else:
                check(place, answer, None)
            first.communicate()
            again = programs.run("late_driver", *place.arguments())
            check(place, again, place.committed())


@pytest.mark.soak
def test_a_driver_dies_behind_the_first_map_tasks(
    programs: Any, s3_server: S3Server, tmp_path: Path
) -> None:
    """The request that is held lands afterwards."""
    kill_at(programs, s3_server, tmp_path, 30, lands=True, stands=False)


@pytest.mark.soak
def test_anywhere(programs: Any, s3_server: S3Server, tmp_path: Path, seed: int) -> None:
    """Drawn requests, each with its two ends."""
    rng = random.Random(seed)
    cases = [(30, True, True)]
    for number in rng.sample(range(1, LEAST_REQUESTS), 12):
        cases.append((number, rng.random() < 0.4, rng.random() < 0.5))
    for number, stands, lands in cases:
        print(number, stands, lands)
        kill_at(programs, s3_server, tmp_path, number, lands=lands, stands=stands)
