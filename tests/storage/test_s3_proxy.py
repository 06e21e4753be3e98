"""A real S3 server behind a proxy that breaks answers below the driver: what comes out is right."""

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from durable_shuffle.serialization.control import encode_control
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.log.slot_log import Lost, SlotLog, Won
from durable_shuffle.shuffle.storage.contract import ByteRange
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.retrying import RetryingStorage
from durable_shuffle.shuffle.testing.fault_proxy import FaultProxy
from durable_shuffle.shuffle.testing.s3_server import S3Server, find_weed, run_s3_server

ROUNDS = 15


def through(proxy: FaultProxy, server: S3Server, folder: str) -> RetryingStorage:
    options = {
        **server.options,
        "endpoint_url": proxy.url,
        "config_kwargs": {"read_timeout": 1.5, "connect_timeout": 5},
    }
    return open_storage(f"s3://{server.bucket}/{folder}", options)


def test_faults_below_the_driver_change_no_outcome(s3_server: S3Server, seed: int) -> None:
    """Every fault at least once; a dictionary says what must be stored, and read back."""
    rng = random.Random(seed)
    expected: dict[str, bytes] = {}
    with FaultProxy(s3_server.endpoint, seed=seed, chance=0.25, stall_seconds=2.5) as proxy:
        storage = through(proxy, s3_server, "proxied")
        log, slots = SlotLog(storage, "job/log/"), []
        for n in range(ROUNDS):
            key, data = f"job/data/{n}", rng.randbytes(rng.randint(1, 50_000))
            storage.put(key, [data])
            expected[key] = data
            record = encode_control("KIND", {"n": n})
            answer = log.append(n, record)
            assert answer == Won(), f"nobody else writes: {answer}"
            slots.append(record)
            assert log.append(n, encode_control("KIND", {"n": -1})) == Lost(record)
            assert storage.read(key) == data
            at = rng.randrange(len(data))
            views = storage.read_ranges([ByteRange(key, 0, at), ByteRange(key, at, 1)])
            assert b"".join(views) == data[: at + 1]
        for n in range(400):  # until each fault has fired
            if not proxy.unfired:
                break
            assert storage.read(f"job/data/{n % ROUNDS}") == expected[f"job/data/{n % ROUNDS}"]
        assert not proxy.unfired, f"never happened: {proxy.unfired}, {proxy.fired}"
        assert [data for _, data in log.read_from()] == slots
        counts = storage.counts
        assert counts.retries > 0
        assert counts.give_ups == 0
    direct = open_storage(f"s3://{s3_server.bucket}/proxied", s3_server.options)
    assert {i.key: direct.read(i.key) for i in direct.list("job/data/")} == expected
    assert sum(1 for _ in direct.list("job/log/")) == ROUNDS


@pytest.mark.skipif(find_weed() is None, reason="no weed program")
def test_a_server_that_is_killed_and_comes_back_ends_no_call(tmp_path: Path) -> None:
    """kill -9, nothing answers, then a new server on the same folder: the calls just go on."""
    clock = SystemClock()
    with FaultProxy("", seed=1, chance=0.0) as proxy:
        with run_s3_server(tmp_path, clock=clock) as first:
            proxy.target = first.endpoint
            storage = through(proxy, first, "x")
            storage.put("a", [b"before"])
            os.killpg(first.process_id, signal.SIGKILL)
        proxy.target = ""
        found: list[object] = []

        def work() -> None:
            found.append(storage.put_if_absent("b", b"while it was away"))
            found.append(storage.read("a"))

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        with run_s3_server(tmp_path, clock=clock) as second:
            assert not found, "the calls are still waiting"
            proxy.target = second.endpoint
            worker.join(150)
            assert not worker.is_alive()
            assert storage.read("b") == b"while it was away"
        assert len(found) == 2
        assert found[1] == b"before"
        assert storage.counts.retries > 3
