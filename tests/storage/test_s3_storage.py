"""The contract on a real S3 server, through obstore and through s3fs."""

import os
import pickle
import re
import socket
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest
import s3fs

from durable_shuffle.serialization.errors import (
    ConflictError,
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.storage.contract import (
    Created,
    Exists,
    Storage,
    folders_of,
    listed_after,
)
from durable_shuffle.shuffle.storage.create_race import race_processes
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.obstore_backend import ObstoreStorage, open_s3
from durable_shuffle.shuffle.testing.s3_server import S3Server
from durable_shuffle.shuffle.testing.storage_conformance import StorageConformance

pytestmark = pytest.mark.s3


@pytest.fixture(scope="module")
def raw(s3_server: S3Server) -> s3fs.S3FileSystem:
    """The driver itself, to look at what the storage did."""
    return s3fs.S3FileSystem(
        **s3_server.options, skip_instance_cache=True, use_listings_cache=False
    )


@pytest.fixture
def url(s3_server: S3Server) -> str:
    """A folder of the bucket that nobody else uses."""
    return f"s3://{s3_server.bucket}/{RandomIds().new_id()}"


KINDS: dict[str, Callable[[str, Mapping[str, object]], Storage]] = {
    "obstore": open_s3,
    "s3fs": FsspecStorage,
}


@pytest.fixture(params=list(KINDS))
def make(request: pytest.FixtureRequest) -> Callable[[str, Mapping[str, object]], Storage]:
    """How a storage is made: through each client that may serve S3."""
    return KINDS[request.param]


@pytest.fixture
def s3_storage(make: Callable[..., Storage], s3_server: S3Server, url: str) -> Storage:
    """A storage in that folder."""
    storage = make(url, s3_server.options)
    assert isinstance(storage, ObstoreStorage) == (make is open_s3)
    return storage


@pytest.fixture
def s3fs_storage(s3_server: S3Server, url: str) -> FsspecStorage:
    """A storage in that folder, through s3fs."""
    return FsspecStorage(url, s3_server.options)


class TestS3Storage(StorageConformance):
    """All laws, with the driver as the way around the storage."""

    race_rounds = 2
    process_race_rounds = 5

    @pytest.fixture
    def storage(self, s3_storage: Storage, raw: s3fs.S3FileSystem) -> Storage:
        self.raw = raw
        return s3_storage

    def raw_write(self, storage: Storage, key: str, content: bytes) -> None:
        self.raw.pipe_file(f"{storage.description}/{key}", content)

    def raw_read(self, storage: Storage, key: str) -> bytes | None:
        try:
            content: bytes = self.raw.cat_file(f"{storage.description}/{key}")
        except FileNotFoundError:
            return None
        return content


@pytest.mark.soak
def test_six_processes_race_and_one_wins(s3_storage: Storage, raw: s3fs.S3FileSystem) -> None:
    """In every round exactly one of six processes creates; the others see its complete bytes."""
    rounds = race_processes(s3_storage, "r/", racers=6, rounds=50)
    assert len(rounds) == 50
    for number, claims in enumerate(rounds):
        assert len({claim.offered for claim in claims}) == 6
        (winner,) = (claim.offered for claim in claims if claim.created)
        assert [claim.existing for claim in claims if not claim.created] == [winner] * 5
        assert raw.cat_file(f"{s3_storage.description}/r/race/{number:06d}") == winner


def test_bucket_itself_can_be_the_root(make: Callable[..., Storage], s3_server: S3Server) -> None:
    """A root without a folder works for every call."""
    storage = make(f"s3://{s3_server.bucket}", s3_server.options)
    folder = RandomIds().new_id()
    storage.put(f"{folder}/a", [b"abc"])
    assert [info.key for info in storage.list(f"{folder}/")] == [f"{folder}/a"]
    assert bytes(storage.read_range(f"{folder}/a", 1, 1)) == b"b"
    storage.delete([f"{folder}/a"])
    with pytest.raises(NotFoundError):
        storage.read(f"{folder}/a")


def test_large_put_in_parts_is_exclusive_too(s3_storage: Storage) -> None:
    """An object above the driver's limit for one request is created whole or not at all."""
    part = os.urandom(1 << 20)
    storage = s3_storage
    storage.put("large", [part] * 101)
    assert bytes(storage.read_range("large", 100 << 20, 1 << 20)) == part
    with pytest.raises(ConflictError, match="large"):
        storage.put("large", [b"x" * (1 << 20)] * 101)
    assert bytes(storage.read_range("large", 50 << 20, 1 << 20)) == part
    storage.delete(["large"])


def test_works_in_forked_processes(s3_storage: Storage) -> None:
    """A storage that was used before a fork serves child and grandchild with new connections."""
    s3_storage.put("parent", [b"p"])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            s3_storage.put("child", [s3_storage.read("parent")])
            grandchild = os.fork()
            if grandchild == 0:
                s3_storage.put("grandchild", [s3_storage.read("child")])
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert s3_storage.read("grandchild") == b"p"


def test_pickle_holds_no_connection(s3_storage: Storage) -> None:
    """What travels to a worker is the URL and the options, also after use."""
    before = len(pickle.dumps(s3_storage))
    s3_storage.put("a", [b"x"])
    assert len(pickle.dumps(s3_storage)) == before
    assert s3_storage.description.encode() in pickle.dumps(s3_storage)


def test_delete_of_more_than_one_request(s3_storage: Storage, raw: s3fs.S3FileSystem) -> None:
    """More keys than one request takes are deleted in several."""
    keys = [f"many/{number}" for number in range(1005)]
    for key in (keys[0], keys[-1], "many/stays"):
        s3_storage.put(key, [b"x"])
    s3_storage.delete(keys)
    assert [path.rsplit("/", 1)[1] for path in raw.find(s3_storage.description)] == ["stays"]


def test_denied_delete_is_reported(
    s3fs_storage: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 tells failed deletes in the body of a good reply; they are not lost."""
    reply = {"Errors": [{"Key": "a", "Code": "AccessDenied", "Message": "no"}]}
    s3fs_storage.put("a", [b"x"])
    filesystem, _ = s3fs_storage._connect()
    monkeypatch.setattr(filesystem, "call_s3", lambda *_args, **_kwargs: reply)
    with pytest.raises(InvalidInputError, match="cannot delete a: AccessDenied"):
        s3fs_storage.delete(["a"])


def _shown(error: DurableShuffleError) -> str:
    """All that a log would hold of an error, causes included."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize(
    ("change", "expected", "says"),
    [
        ({"secret": "wrong-secret-key-77"}, InvalidInputError, "signature"),
        ({"key": "wrong-access-key-77"}, InvalidInputError, "access key"),
        ({"endpoint_url": "http://127.0.0.1:1"}, UnavailableError, "connect"),
        ({"endpoint_url": "no-url"}, InvalidInputError, "Invalid endpoint"),
        ({"no_such_option": 1}, InvalidInputError, "no_such_option"),
        ({"config_kwargs": 5}, InvalidInputError, "config_kwargs"),
    ],
    ids=["secret", "key", "refused", "url", "option", "config"],
)
def test_wrong_settings_are_ours_and_show_no_secret(
    make: Callable[..., Storage],
    s3_server: S3Server,
    url: str,
    change: dict[str, object],
    expected: type[Exception],
    says: str,
) -> None:
    """Each wrong setting is one of our errors for reads and writes, and shows no credentials."""
    storage = make(url, {**s3_server.options, **change})
    for call in (
        lambda: storage.read("a"),
        lambda: storage.read_range("a", 0, 1),
        lambda: list(storage.list("")),
        lambda: storage.put("a", [b"x"]),
        lambda: storage.put_if_absent("a", b"x"),
        lambda: storage.delete(["a"]),
    ):
        with pytest.raises(expected, match=f"(?i){says}") as caught:
            call()
        assert url in str(caught.value)
        shown = _shown(caught.value)
        for secret in (s3_server.secret, s3_server.key, "-key-77"):
            assert secret not in shown


def test_password_in_an_endpoint_is_not_shown(
    make: Callable[..., Storage], s3_server: S3Server, url: str
) -> None:
    """An endpoint with a password in it fails in the HTTP client, which likes to quote URLs."""
    endpoint = "http://user:pass-word-77@127.0.0.1:1"
    storage = make(url, {**s3_server.options, "endpoint_url": endpoint})
    with pytest.raises(DurableShuffleError) as caught:
        storage.read("a")
    assert "pass-word-77" not in _shown(caught.value)


def test_missing_bucket_is_a_mistake_not_a_missing_object(
    make: Callable[..., Storage], s3_server: S3Server
) -> None:
    """A root that does not exist must not look like an empty one."""
    storage = make("s3://no-such-bucket/x", s3_server.options)
    for call in (
        lambda: storage.read("a"),
        lambda: list(storage.list("")),
        lambda: storage.put("a", [b"x"]),
        lambda: storage.put_if_absent("a", b"x"),
    ):
        with pytest.raises(InvalidInputError, match="bucket"):
            call()


def test_retries_of_the_driver_are_off(s3fs_storage: FsspecStorage) -> None:
    """One layer retries, and it is not the driver nor its client."""
    s3fs_storage.put("a", [b"x"])
    filesystem, _ = s3fs_storage._connect()
    assert filesystem.retries == 1
    assert filesystem.s3.meta.config.retries["total_max_attempts"] == 1
    assert filesystem.dircache.use_listings_cache is False


def test_old_botocore_is_refused(
    s3fs_storage: FsspecStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """s3fs drops what botocore does not know, also the condition: then nothing is written."""
    s3fs_storage.put("a", [b"x"])
    filesystem, _ = s3fs_storage._connect()
    shape = filesystem.s3.meta.service_model.operation_model("PutObject").input_shape
    monkeypatch.delitem(shape.members, "IfNoneMatch")
    from durable_shuffle.shuffle.storage.exclusive_create import find_driver, prepare_filesystem

    with pytest.raises(InvalidInputError, match="botocore is too old"):
        prepare_filesystem(find_driver("s3"), filesystem)


_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_EXPECT = re.compile(rb"expect: *100-continue\r\n", re.IGNORECASE)


def _read_message(connection: socket.socket) -> bytes:
    """Read one HTTP request or reply with its body; empty when the other side has gone."""
    head, body = b"", b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(65536)
        if not piece:
            return b""
        head += piece
    head, _, body = head.partition(b"\r\n\r\n")
    head += b"\r\n"
    if _EXPECT.search(head):
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        head = _EXPECT.sub(b"", head)
    length = _LENGTH.search(head)
    while length and len(body) < int(length[1]):
        body += connection.recv(65536)
    return head + b"\r\n" + body


@contextmanager
def proxy_that_loses_replies(s3_server: S3Server, *, deliver: bool) -> Iterator[str]:
    """Forward requests to the server, but break the connection instead of answering a PUT.

    With `deliver` the PUT reaches the server first, and is answered there.
    """
    target = urlsplit(s3_server.endpoint)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            while request := _read_message(connection):
                lost = request.startswith(b"PUT ")
                if lost and not deliver:
                    return
                with socket.create_connection((target.hostname, target.port)) as onward:
                    onward.sendall(request)
                    reply = _read_message(onward)
                if lost:
                    return
                connection.sendall(reply)

    def accept() -> None:
        with suppress(OSError):  # the listener was closed
            while True:
                threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(60)


@pytest.mark.requirement("R-F232-21")
def test_lost_reply_of_a_create_that_landed_is_created(
    make: Callable[..., Storage], s3_server: S3Server, url: str, raw: s3fs.S3FileSystem
) -> None:
    """The reply of our own create was lost: reading back finds our bytes, so we won."""
    with proxy_that_loses_replies(s3_server, deliver=True) as endpoint:
        storage = make(url, {**s3_server.options, "endpoint_url": endpoint})
        assert storage.put_if_absent("a", b"mine, id 1") == Created()
        storage.put("b", [b"mine, ", b"id 2"])
    assert raw.cat_file(f"{url}/a") == b"mine, id 1"
    assert raw.cat_file(f"{url}/b") == b"mine, id 2"


def test_lost_reply_over_anothers_object_is_exists(
    make: Callable[..., Storage], s3_server: S3Server, url: str, raw: s3fs.S3FileSystem
) -> None:
    """The reply was lost and somebody else's bytes are there: they won."""
    raw.pipe_file(f"{url}/a", b"theirs")
    with proxy_that_loses_replies(s3_server, deliver=True) as endpoint:
        storage = make(url, {**s3_server.options, "endpoint_url": endpoint})
        assert storage.put_if_absent("a", b"mine") == Exists(b"theirs")
        with pytest.raises(ConflictError):
            storage.put("a", [b"mine"])


def test_lost_request_is_an_unknown_outcome(
    make: Callable[..., Storage], s3_server: S3Server, url: str
) -> None:
    """The connection broke and nothing is there: it may still land, so nobody claims to know."""
    with proxy_that_loses_replies(s3_server, deliver=False) as endpoint:
        storage = make(url, {**s3_server.options, "endpoint_url": endpoint})
        with pytest.raises(OutcomeUnknownError, match=r"cannot create a: the reply was lost"):
            storage.put_if_absent("a", b"mine")
        with pytest.raises(OutcomeUnknownError, match=r"cannot create b: the reply was lost"):
            storage.put("b", [b"mine"])


def test_reads_survive_nothing_but_say_so(
    make: Callable[..., Storage], s3_server: S3Server, url: str
) -> None:
    """A server that is gone is worth another try, for every kind of read."""
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    storage = make(url, {**s3_server.options, "endpoint_url": endpoint})
    for call in (lambda: storage.read("a"), lambda: storage.read_range("a", 0, 1)):
        with pytest.raises(UnavailableError, match="cannot read a"):
            call()


def test_clients_are_shared_and_never_used_after_a_fork(s3_server: S3Server, url: str) -> None:
    """50 unpickled storages share one client; a forked child does not touch the parent's."""
    storage = open_s3(url, s3_server.options)
    assert isinstance(storage, ObstoreStorage)
    copies = [pickle.loads(pickle.dumps(storage)) for _ in range(50)]
    assert len({id(copy._store()) for copy in copies}) == 1
    slow = [FsspecStorage(url, s3_server.options) for _ in range(5)]
    assert len({id(copy._connect()[0]) for copy in slow}) == 1
    storage.put("warm", [b"x"])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            other = storage._instead()
            status = 0 if other is not None and other.read("warm") == b"x" else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def test_a_listing_begins_behind_a_key(s3_storage: Storage) -> None:
    """The same answer as from all keys below the prefix, on each backend."""
    keys = [f"job/log/{n:010d}" for n in range(12)]
    for key in (*keys, "job/a", "job/logs/1", "job/z"):
        s3_storage.put(key, [b"x"])
    for after in ("", keys[0], keys[6], "job/log/00000000069", keys[-1], "job/z"):
        found = [info.key for info in listed_after(s3_storage, "job/log/", after)]
        assert found == [key for key in keys if key > after]


def test_folders_are_listed_without_what_they_hold(s3_storage: Storage) -> None:
    """The same answer as from all keys, by one request however many objects there are."""
    for key in ("job/b/1", "job/b/2", "job/a/x/1", "job/file", "jobs/c/1"):
        s3_storage.put(key, [b"x"])
    assert folders_of(s3_storage, "job/") == ("a", "b")
    assert folders_of(s3_storage, "job/a/") == ("x",)
    assert folders_of(s3_storage, "job/nothing/") == ()
    assert folders_of(s3_storage, "") == ("job", "jobs")
