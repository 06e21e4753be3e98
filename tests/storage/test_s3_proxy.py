"""A real S3 server behind a proxy that breaks answers below the driver: what comes out is right."""

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from durable_shuffle.serialization.control import encode_control
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    InvalidInputError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.log.slot_log import Lost, SlotLog, Won
from durable_shuffle.shuffle.storage.contract import ByteRange, Storage
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.obstore_backend import open_s3
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


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the driver looks, since the options and the environment hold nothing."""
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return file


def credentials_of(key: str, secret: str) -> str:
    return f"[default]\naws_access_key_id={key}\naws_secret_access_key={secret}\n"


class Renewing(FaultProxy):
    """Behind the first refusal of expired credentials, a side process renews them."""

    renewal: Callable[[], object] = staticmethod(lambda: None)

    def note(self, fault: str) -> None:
        super().note(fault)
        if fault == "expired":
            self.renewal()


def test_credentials_that_are_renewed_in_mid_run_are_taken_up(
    s3_server: S3Server, credentials: Path
) -> None:
    """The calls of several kinds that meet the expiry go on, each with one client made anew."""
    good = credentials_of(s3_server.key, s3_server.secret)
    calls: list[Callable[[RetryingStorage], object]] = [
        lambda s: s.read("a"),
        lambda s: s.read_range("a", 0, 2),
        lambda s: s.put_if_absent("b", b"b"),
        lambda s: list(s.list("")),
        lambda s: s.delete(["b"]),
    ]
    with Renewing(s3_server.endpoint, seed=1, chance=0.0) as proxy:
        proxy.renewal = lambda: credentials.write_text(good)
        options = {"endpoint_url": proxy.url, "client_kwargs": {"region_name": "us-east-1"}}
        for number, call in enumerate(calls):
            proxy.expired = ""
            credentials.write_text(credentials_of("old", "old"))
            url = f"s3://{s3_server.bucket}/expires/{number}"  # another client
            storage = open_storage(url, options)
            open_storage(url, s3_server.options).put("a", [b"abc"])
            proxy.expired = "old"
            call(storage)
            assert proxy.fired["expired"] == number + 1
            assert storage.counts.retries == 1


def test_credentials_that_stay_expired_are_an_outage(
    s3_server: S3Server, credentials: Path
) -> None:
    """So `durable-shuffle run` starts the program again; nothing in the message is a secret."""
    credentials.write_text(credentials_of("old", "old-secret"))
    with FaultProxy(s3_server.endpoint, seed=1, chance=0.0) as proxy:
        proxy.expired = "old"
        options = {"endpoint_url": proxy.url, "client_kwargs": {"region_name": "us-east-1"}}
        storage = open_storage(f"s3://{s3_server.bucket}/x", options, call_seconds=0.2)
        with pytest.raises(UnavailableError, match="no longer valid, renew them") as e:
            storage.read("a")
    assert "old-secret" not in str(e.value)


def test_refusals_without_a_reason_are_final_in_the_end(s3_server: S3Server) -> None:
    """One or two are a proxy's; the third in a row is meant."""
    with FaultProxy(s3_server.endpoint, seed=1, chance=1.0, faults=("stray",)) as proxy:
        storage = through(proxy, s3_server, "x")
        with pytest.raises(InvalidInputError, match="tries=3"):
            storage.read("a")
        assert proxy.fired["stray"] == 3


@pytest.mark.parametrize("answer", ["unknown", "digest"])
@pytest.mark.parametrize("opens", [open_s3, FsspecStorage], ids=["obstore", "s3fs"])
def test_a_service_without_bulk_deletes_deletes_one_by_one(
    s3_server: S3Server,
    opens: Callable[..., Storage],
    answer: Literal["unknown", "digest"],
) -> None:
    """As the S3 interface of Google's storage does; objects that are missing are fine."""
    with FaultProxy(s3_server.endpoint, seed=1, chance=0.0) as proxy:
        proxy.no_bulk_deletes = answer
        options = {**s3_server.options, "endpoint_url": proxy.url}
        storage = opens(f"s3://{s3_server.bucket}/single", options)
        for key in ("a", "b", "c"):
            storage.put(key, [b"x"])
        storage.delete(["a", "missing", "b"])
        assert [info.key for info in storage.list("")] == ["c"]
        assert proxy.fired[answer] > 0
        storage.delete(["c"])


@pytest.mark.parametrize("opens", [open_s3, FsspecStorage], ids=["obstore", "s3fs"])
def test_a_service_that_ignores_ranges(
    s3_server: S3Server, opens: Callable[..., Storage], seed: int
) -> None:
    """The wanted bytes of the whole object; what lies outside is refused as elsewhere."""
    data = random.Random(seed).randbytes(10_000)
    with FaultProxy(s3_server.endpoint, seed=1, chance=0.0) as proxy:
        proxy.ranges = False
        options = {**s3_server.options, "endpoint_url": proxy.url}
        storage = opens(f"s3://{s3_server.bucket}/ranges", options)
        storage.put("a", [data])
        places = [(0, 1), (17, 4_000), (9_999, 1), (0, 10_000)]
        found = storage.read_ranges([ByteRange("a", *place) for place in places])
        assert found == [data[at : at + length] for at, length in places]
        with pytest.raises(CorruptDataError):
            storage.read_range("a", 9_999, 2)
        assert storage.read("a") == data
        assert proxy.fired["range"] >= len(places)


@pytest.mark.parametrize("opens", [open_s3, FsspecStorage], ids=["obstore", "s3fs"])
def test_an_answer_that_nobody_asked_for_is_asked_again(
    s3_server: S3Server, opens: Callable[..., Storage]
) -> None:
    """304 comes from a cache between: it is no data, and no reason to end a job."""
    with FaultProxy(s3_server.endpoint, seed=1, chance=0.0) as proxy:
        options = {**s3_server.options, "endpoint_url": proxy.url}
        storage = RetryingStorage(opens(f"s3://{s3_server.bucket}/cached", options))
        storage.put("a", [b"data"])
        proxy.not_modified = 2
        assert storage.read("a") == b"data"
        proxy.not_modified = 2
        assert storage.read_range("a", 1, 2) == b"at"
        assert proxy.fired["unchanged"] == 4
