"""HDFS: the conformance kit and races on a real namenode and datanode."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hdfs_cluster import HdfsCluster, hdfs_cluster

from durable_shuffle.serialization.errors import (
    InvalidInputError,
    NotFoundError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.storage.contract import Created, Storage
from durable_shuffle.shuffle.storage.hdfs import HdfsStorage
from durable_shuffle.shuffle.storage.open import open_backend, open_storage
from durable_shuffle.shuffle.testing.storage_conformance import StorageConformance

pytestmark = pytest.mark.spark  # it needs a JVM and PySpark's jars


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """One namenode and one datanode for the file."""
    with hdfs_cluster(tmp_path_factory.mktemp("hdfs")) as running:
        yield running


@pytest.fixture
def storage(cluster: HdfsCluster) -> Storage:
    return open_backend(cluster.url(f"/shuffle/{RandomIds().new_id()}"), {})


class TestHdfsStorage(StorageConformance):
    """All laws. hdfs-native itself, with another client, is the way around the storage."""

    race_rounds = 2

    @pytest.fixture
    def storage(self, cluster: HdfsCluster) -> Storage:
        return open_backend(cluster.url(f"/shuffle/{RandomIds().new_id()}"), {})

    def raw_write(self, storage: Storage, key: str, content: bytes) -> None:
        from hdfs_native import WriteOptions

        client, path = self._around(storage, key)
        with client.create(path, WriteOptions(create_parent=True, overwrite=True)) as file:
            if content:
                file.write(content)

    def raw_read(self, storage: Storage, key: str) -> bytes | None:
        client, path = self._around(storage, key)
        try:
            return bytes(client.read(path).read())
        except FileNotFoundError:
            return None

    def _around(self, storage: Storage, key: str) -> tuple[object, str]:
        from hdfs_native import Client

        server, _, path = storage.description.removeprefix("hdfs://").partition("/")
        return Client(f"hdfs://{server}"), f"/{path}/{key}"


@pytest.mark.soak
class TestViewfs(TestHdfsStorage):
    """All laws through a mount table, whose link leads to another folder of HDFS."""

    @pytest.fixture
    def storage(self, cluster: HdfsCluster) -> Storage:
        return open_backend(f"viewfs://tables/data/{RandomIds().new_id()}", mounted(cluster))

    @pytest.fixture(autouse=True)
    def _here(self, cluster: HdfsCluster) -> None:
        self._server = cluster.url("")

    def _around(self, storage: Storage, key: str) -> tuple[object, str]:
        from hdfs_native import Client

        path = storage.description.removeprefix("viewfs://tables/data/")
        return Client(self._server), f"/mounted/{path}/{key}"


def mounted(cluster: HdfsCluster) -> dict[str, str]:
    """Return a mount table, with the fallback that hdfs-native needs."""
    table = "fs.viewfs.mounttable.tables"
    return {
        f"{table}.link./data": cluster.url("/mounted"),
        f"{table}.linkFallback": cluster.url("/"),
    }


def test_a_mount_table_without_fallback_is_refused(cluster: HdfsCluster) -> None:
    """By name, with what to set: hdfs-native opens none without."""
    table = mounted(cluster)
    table.pop("fs.viewfs.mounttable.tables.linkFallback")
    with pytest.raises(
        InvalidInputError, match=r"set fs\.viewfs\.mounttable\.tables\.linkFallback"
    ):
        open_backend("viewfs://tables/data", table).read("a")


def test_the_hidden_files_of_writers_are_found_and_deleted(storage: HdfsStorage) -> None:
    """As `gc` does it. Listings do not show them, and only they are deleted."""
    storage.put("job/a", [b"1"])
    hidden = f"job/.{RandomIds().new_id()}.tmp"
    storage._write(storage._path(hidden), b"half")
    assert [info.key for info in storage.list("job/")] == ["job/a"]
    assert [info.key for info in storage.temporary_files("")] == [hidden]
    with pytest.raises(InvalidInputError, match="not a temporary file"):
        storage.delete_temporary(["job/a"])
    storage.delete_temporary([hidden])
    assert list(storage.temporary_files("")) == []
    assert storage.read("job/a") == b"1"


@pytest.mark.parametrize("misses", [1, 2, 3])
def test_a_folder_that_comes_during_a_listing_is_listed(
    storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch, misses: int
) -> None:
    """The namenode says that it is not there, and then that it is: missing never reads as empty."""
    storage.put("job/a", [b"1"])
    client = storage._client()
    asked = 0

    class Late:
        def __getattr__(self, name: str) -> object:
            return getattr(client, name)

        def list_status(self, path: str, recursive: bool) -> object:
            nonlocal asked
            asked += 1
            if asked <= misses:
                raise FileNotFoundError(path)
            return client.list_status(path, recursive)

    monkeypatch.setattr(storage, "_client", Late)
    if misses == 3:
        with pytest.raises(UnavailableError):
            list(storage.list("job/"))
    else:
        assert [info.key for info in storage.list("job/")] == ["job/a"]
    assert asked == min(misses + 1, 3)


def test_empty_folders_go_and_full_ones_stay(storage: HdfsStorage) -> None:
    """They would fill the namenode's memory."""
    storage.put("job/a/b/c", [b"1"])
    storage.put("job/d/e", [b"1"])
    storage.delete(["job/a/b/c"])
    assert storage.folders("job/") == ("a", "d")
    storage.remove_empty_folders("job/")
    assert storage.folders("job/") == ("d",)


def test_a_rename_whose_reply_was_lost_is_settled_by_reading(
    storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sends it again and is told that the hidden file is gone: this call has won."""
    rename, fired = HdfsStorage._rename, []

    def twice(self: HdfsStorage, hidden: str, path: str) -> None:
        rename(self, hidden, path)
        fired.append(path)
        rename(self, hidden, path)

    monkeypatch.setattr(HdfsStorage, "_rename", twice)
    assert storage.put_if_absent("slot", b"mine") == Created()
    assert len(fired) == 1
    assert storage.read("slot") == b"mine"
    assert list(storage.temporary_files("")) == []


def test_observers_are_switched_off_whatever_the_name() -> None:
    """The nameservice keeps its case, which Hadoop tells apart; what the user set does not count.
    Storages with other settings are told apart, without a value in their identity."""
    provider = "dfs.client.failover.proxy.provider.MyNames"
    given = {provider: "org.apache.hadoop.hdfs.server.namenode.ha.ObserverReadProxyProvider"}
    storage = HdfsStorage("hdfs://MyNames/shuffle", given)
    assert storage._settings[provider].endswith(".ConfiguredFailoverProxyProvider")
    other = HdfsStorage("hdfs://MyNames/shuffle", {"dfs.nameservices": "MyNames"})
    assert storage.identity != other.identity
    assert "dfs." not in storage.identity


def test_a_server_that_is_not_there_is_unavailable() -> None:
    """It is no missing object."""
    lost = open_storage("hdfs://127.0.0.1:1/shuffle", call_seconds=0.1)
    with pytest.raises(UnavailableError):
        lost.read("a")
    with pytest.raises(UnavailableError):
        list(lost.list(""))


def test_what_no_object_is_called(storage: HdfsStorage) -> None:
    """A key below a file names no object; a folder is none."""
    storage.put("a", [b"1"])
    storage.put("b/c", [b"1"])
    for key in ("a/b", "b"):
        with pytest.raises(NotFoundError):
            storage.read(key)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_one_winner_over_failovers_and_crashes(tmp_path: Path) -> None:
    """Six racers for each key, while namenodes hand over, crash and come back."""
    keys, racers = 30, 6
    with hdfs_cluster(tmp_path, namenodes=2) as ha:
        settings = ha.nameservice()
        storage = open_storage("hdfs://ha/race", settings, call_seconds=120)
        events = ["failover", "failover", "crash", "revive"] * 3

        def race(key: str, racer: int) -> bool:
            data = f"{key} {racer} {RandomIds().new_id()}".encode()
            answer = storage.put_if_absent(key, data)
            assert storage.read(key) == (data if answer == Created() else answer.existing)
            return answer == Created()

        with ThreadPoolExecutor(racers) as pool:
            for number in range(keys):
                going = [pool.submit(race, f"k{number}", racer) for racer in range(racers)]
                if number % 3 == 1 and events:
                    getattr(ha, events.pop(0))()
                assert sum(one.result() for one in going) == 1
        assert len(events) < 4
        assert len(list(storage.list(""))) == keys


@pytest.mark.parametrize("url", ["hdfs:///folder", "hdfs://host:8020", "hdfs://host:8020/"])
def test_urls_without_server_or_folder_are_refused(url: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidInputError, match="expected hdfs://namenode:port/folder"):
        open_backend(url, {})
