"""The storage contract as tests: subclass `StorageConformance` for every implementation.

A subclass gives the storage and two raw accessors that go around it. A test that writes through
the storage reads by a raw accessor, and the other way round. Each test is one law of
`durable_shuffle.shuffle.storage.contract`. This file needs pytest; docs/internals/storage.md shows
its use.

    class TestMyStorage(StorageConformance):
        @pytest.fixture
        def storage(self, tmp_path) -> Storage: ...
        def raw_write(self, storage, key, content): ...
        def raw_read(self, storage, key): ...

It proves nothing about power failures, about several hosts, nor about a service under load.
"""

import os
import pickle
import threading
from collections.abc import Callable
from typing import Literal

import pytest

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.retry import Backoff
from durable_shuffle.shuffle.storage.contract import ByteRange, Bytes, Created, Exists, Storage
from durable_shuffle.shuffle.storage.create_race import (
    RaceClaim,
    race_key,
    race_processes,
    race_threads,
)
from durable_shuffle.shuffle.storage.retrying import RetryingStorage, StorageRetries
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule

BAD_KEYS = (
    *("", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/.hidden", "a\0b"),
    *("a b", "a*", "a?", "a[0]", "a\\b", "a%2e", "a#b", "file:a", "a\n", "é", "k" * 2000),
)
"""Keys that some backend would take for something else; all storages refuse them."""


class OneProcessConformance:
    """Laws that every storage keeps, also one that cannot leave its process. Tests use keys below
    `contract/` in an empty root."""

    race_rounds = 20
    """Keys that threads race for; fewer where a contended create takes seconds."""
    large_bytes = 12 << 20
    """Size of the large object: give more than what the backend sends in one request."""

    @pytest.fixture
    def storage(self) -> Storage:
        """Return the storage under test, empty."""
        raise NotImplementedError

    def raw_write(self, storage: Storage, key: str, content: bytes) -> None:
        """Make the object without the storage under test."""
        raise NotImplementedError

    def raw_read(self, storage: Storage, key: str) -> bytes | None:
        """Return the object without the storage under test; None if it is missing."""
        raise NotImplementedError

    @pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 5000])
    def test_read_returns_what_others_wrote(self, storage: Storage, content: bytes) -> None:
        """`read` gives the whole object, whoever wrote it."""
        self.raw_write(storage, "contract/read", content)
        assert storage.read("contract/read") == content

    def test_put_writes_the_parts_in_order(self, storage: Storage) -> None:
        """`put` stores the concatenation, whatever kind of buffer a part is."""
        parts: list[Bytes] = [
            b"ab",
            bytearray(b"cd"),
            memoryview(b"xefx")[1:3],
            b"",
            b"g" * 300_000,
        ]
        storage.put("contract/put", parts)
        assert self.raw_read(storage, "contract/put") == b"abcdef" + b"g" * 300_000

    def test_put_without_parts_makes_an_empty_object(self, storage: Storage) -> None:
        """No bytes is an object, not nothing."""
        storage.put("contract/none", [])
        assert self.raw_read(storage, "contract/none") == b""

    def test_put_refuses_an_existing_key(self, storage: Storage) -> None:
        """`put` never replaces; the object stays as it was."""
        self.raw_write(storage, "contract/taken", b"theirs")
        for content in (b"mine", b"", b"theirs and more"):
            with pytest.raises(ConflictError, match="contract/taken"):
                storage.put("contract/taken", [content])
        assert self.raw_read(storage, "contract/taken") == b"theirs"

    def test_put_again_is_the_same_put(self, storage: Storage) -> None:
        """Equal bytes under an unguessable name are one's own: a repeated put has succeeded."""
        storage.put("contract/twice", [b"same ", b"bytes"])
        storage.put("contract/twice", [b"same bytes"])
        assert self.raw_read(storage, "contract/twice") == b"same bytes"

    def test_put_if_absent_creates(self, storage: Storage) -> None:
        """An absent key is created with the whole content."""
        assert storage.put_if_absent("contract/new", b"mine") == Created()
        assert self.raw_read(storage, "contract/new") == b"mine"

    def test_put_if_absent_returns_what_is_there(self, storage: Storage) -> None:
        """An existing key is left alone and its content returned."""
        self.raw_write(storage, "contract/taken", b"theirs")
        assert storage.put_if_absent("contract/taken", b"mine") == Exists(b"theirs")
        assert self.raw_read(storage, "contract/taken") == b"theirs"

    def test_put_if_absent_race_of_threads(self, storage: Storage) -> None:
        """Of eight threads one creates, and the others see its complete bytes."""
        rounds = race_threads(
            storage, "contract/", racers=8, rounds=self.race_rounds, size_bytes=5000
        )
        assert len(rounds) == self.race_rounds
        self._judge_race(storage, rounds, racers=8)

    def _judge_race(self, storage: Storage, rounds: list[list[RaceClaim]], *, racers: int) -> None:
        """Each key has one winner, whose bytes are stored and shown to the losers."""
        for number, claims in enumerate(rounds):
            (winner,) = (claim.offered for claim in claims if claim.created)
            assert self.raw_read(storage, race_key("contract/", number)) == winner
            losers = [claim.existing for claim in claims if not claim.created]
            assert losers == [winner] * (racers - 1)

    def test_read_refuses_what_is_too_long(self, storage: Storage) -> None:
        """Whoever reads a whole object says how long it may be at most."""
        storage.put("a/b", [b"12345678"])
        assert storage.read("a/b", 8) == b"12345678"
        with pytest.raises(CorruptDataError, match=r"too long, expected at most 7 bytes"):
            storage.read("a/b", 7)

    def test_read_range_is_exact(self, storage: Storage) -> None:
        """A range gives its bytes, no more and no less, read-only."""
        content = bytes(index % 251 for index in range(20_000))
        self.raw_write(storage, "contract/range", content)
        for start, length in ((0, 20_000), (0, 1), (19_999, 1), (4095, 2), (8192, 4096), (7, 0)):
            view = storage.read_range("contract/range", start, length)
            assert bytes(view) == content[start : start + length]
            assert view.readonly
            assert (view.format, view.itemsize, view.nbytes) == ("B", 1, length)

    def test_read_range_at_the_end_may_be_empty(self, storage: Storage) -> None:
        """Nothing at the very end is inside the object, also if the object is empty."""
        self.raw_write(storage, "contract/three", b"abc")
        self.raw_write(storage, "contract/empty", b"")
        assert bytes(storage.read_range("contract/three", 3, 0)) == b""
        assert bytes(storage.read_range("contract/empty", 0, 0)) == b""

    @pytest.mark.parametrize(("start", "length"), [(0, 4), (2, 2), (3, 1), (9, 1), (4, 0)])
    def test_read_range_outside_is_corruption(
        self, storage: Storage, start: int, length: int
    ) -> None:
        """An object that is too short is an error that names it, never a short answer."""
        self.raw_write(storage, "contract/short", b"abc")
        with pytest.raises(CorruptDataError, match="contract/short"):
            storage.read_range("contract/short", start, length)

    def test_read_range_outlives_the_object(self, storage: Storage) -> None:
        """A view stays valid after its object was deleted."""
        self.raw_write(storage, "contract/view", b"abcdef" * 1000)
        view = storage.read_range("contract/view", 6, 6)
        storage.delete(["contract/view"])
        assert bytes(view) == b"abcdef"

    def test_read_ranges_keep_their_order(self, storage: Storage) -> None:
        """One buffer per range, in the order asked for, over several objects."""
        self.raw_write(storage, "contract/a", b"aAbBcC")
        self.raw_write(storage, "contract/b", b"xXyYzZ")
        wanted = [
            ByteRange("contract/b", 2, 2),
            ByteRange("contract/a", 0, 0),
            ByteRange("contract/a", 4, 2),
            ByteRange("contract/b", 0, 1),
            ByteRange("contract/b", 0, 1),
        ]
        found = [bytes(view) for view in storage.read_ranges(wanted)]
        assert found == [b"yY", b"", b"cC", b"x", b"x"]
        assert storage.read_ranges([]) == []

    def test_read_ranges_fail_as_a_whole(self, storage: Storage) -> None:
        """One bad range is the error of the call, and it is named."""
        self.raw_write(storage, "contract/a", b"abc")
        good = ByteRange("contract/a", 0, 1)
        with pytest.raises(NotFoundError, match="contract/gone"):
            storage.read_ranges([good, ByteRange("contract/gone", 0, 1)])
        with pytest.raises(CorruptDataError, match="contract/a"):
            storage.read_ranges([good, ByteRange("contract/a", 2, 9), good])

    def test_missing_is_an_error(self, storage: Storage) -> None:
        """No read takes a missing object for an empty one; a 'folder' is no object.

        Where a folder takes the name for itself, nothing can be created there: that is damage.
        """
        self.raw_write(storage, "contract/folder/object", b"x")
        folder = (NotFoundError, CorruptDataError)
        for key, error in (
            ("contract/gone", NotFoundError),
            ("contract/folder", folder),
            ("contract/folder/object/below", NotFoundError),
        ):
            with pytest.raises(error, match=key):
                storage.read(key)
            for length in (0, 1):
                with pytest.raises(error, match=key):
                    storage.read_range(key, 0, length)

    def test_negative_ranges_are_refused(self, storage: Storage) -> None:
        """A negative start never counts from the end."""
        self.raw_write(storage, "contract/a", b"abc")
        for start, length in ((-1, 1), (0, -1)):
            with pytest.raises(InvalidInputError, match="never negative"):
                storage.read_range("contract/a", start, length)

    def test_list_yields_keys_and_sizes(self, storage: Storage) -> None:
        """A listing has the objects below the prefix, at any depth, and nothing beside it."""
        sizes = {"contract/l/a": 1, "contract/l/b/c/d": 20, "contract/l/b-e": 0}
        for key, size_bytes in {**sizes, "contract/lx": 5, "other": 6}.items():
            self.raw_write(storage, key, b"s" * size_bytes)
        listed = list(storage.list("contract/l/"))
        assert {info.key: info.size_bytes for info in listed} == sizes
        assert len(listed) == len(sizes)
        assert {"other", "contract/lx"} <= {info.key for info in storage.list("")}

    def test_list_dates_objects_near_each_other(self, storage: Storage) -> None:
        """Objects written one after the other carry dates of the same minute, after 2020."""
        for key in ("contract/l/a", "contract/l/b"):
            storage.put(key, [b"x"])
        first, second = (info.modified_wall_seconds for info in storage.list("contract/l/"))
        assert abs(first - second) < 60
        assert first > 1_577_836_800

    def test_list_of_nothing_is_empty(self, storage: Storage) -> None:
        """A prefix without objects yields nothing, also in an empty root."""
        assert list(storage.list("contract/nothing/")) == []
        assert list(storage.list("")) == []

    def test_delete(self, storage: Storage) -> None:
        """What is deleted is gone and its key is free; a missing object is fine."""
        for key in ("contract/a", "contract/b", "contract/c"):
            self.raw_write(storage, key, b"x")
        storage.delete(["contract/a", "contract/gone", "contract/no/folder", "contract/b"])
        storage.delete([])
        assert [self.raw_read(storage, f"contract/{name}") for name in "abc"] == [None, None, b"x"]
        assert storage.put_if_absent("contract/a", b"again") == Created()

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_bad_keys_are_refused_by_every_call(self, storage: Storage, key: str) -> None:
        """A key that some backend would read as a pattern, a parent or a root reaches none."""
        calls: list[Callable[[], object]] = [
            lambda: storage.read(key),
            lambda: storage.read_range(key, 0, 1),
            lambda: storage.read_ranges([ByteRange(key, 0, 1)]),
            lambda: storage.put(key, [b"x"]),
            lambda: storage.put_if_absent(key, b"x"),
            lambda: storage.delete(["contract/fine", key]),
        ]
        self.raw_write(storage, "contract/fine", b"x")
        for call in calls:
            with pytest.raises(InvalidInputError, match="key"):
                call()
        assert self.raw_read(storage, "contract/fine") == b"x"

    @pytest.mark.parametrize("prefix", ["a", "/", "../", "a/../", "a//", ".a/", "*/"])
    def test_bad_prefixes_are_refused(self, storage: Storage, prefix: str) -> None:
        """A prefix ends with a slash, so that no name is taken for the beginning of another."""
        with pytest.raises(InvalidInputError):
            list(storage.list(prefix))

    def test_large_object(self, storage: Storage) -> None:
        """An object of many parts is whole, its ranges are exact at every edge, it is exclusive."""
        piece = os.urandom(1 << 16)
        count = self.large_bytes // len(piece)
        storage.put("contract/large", [piece] * count)
        size_bytes = len(piece) * count
        assert self.raw_read(storage, "contract/large") == piece * count
        edges = (0, 1, len(piece) - 1, size_bytes // 2 - 1, size_bytes - len(piece) - 1)
        wanted = [ByteRange("contract/large", start, len(piece) + 1) for start in edges]
        for where, view in zip(wanted, storage.read_ranges(wanted), strict=True):
            turn = where.start % len(piece)
            assert bytes(view) == (piece * 3)[turn : turn + len(piece) + 1]
        with pytest.raises(CorruptDataError, match="contract/large"):
            storage.read_range("contract/large", size_bytes - 1, 2)
        with pytest.raises(ConflictError, match="contract/large"):
            storage.put("contract/large", [piece] * (count - 1))
        assert [info.size_bytes for info in storage.list("contract/")] == [size_bytes]

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_write_whose_reply_was_lost_is_sent_again(
        self, storage: Storage, when: Literal["before", "after"]
    ) -> None:
        """Whether or not the first request landed, the second says that the bytes are ours."""
        lost = [
            Rule(verb, when=when, fault="lost_reply", nth=1) for verb in ("put", "put_if_absent")
        ]
        faulty = FaultyStorage(storage, lost)
        again = RetryingStorage(faulty, StorageRetries(Backoff(2, 0.001)))
        again.put("contract/put", [b"mine, ", b"id 1"])
        assert again.put_if_absent("contract/create", b"mine, id 2") == Created()
        assert not faulty.unfired
        assert self.raw_read(storage, "contract/put") == b"mine, id 1"
        assert self.raw_read(storage, "contract/create") == b"mine, id 2"

    def test_lost_reply_never_hides_another_winner(self, storage: Storage) -> None:
        """The first request was lost on its way and somebody else came first: they won."""
        faulty = FaultyStorage(storage, [Rule("put_if_absent", fault="lost_reply")])
        again = RetryingStorage(faulty, StorageRetries(Backoff(2, 0.001)))
        self.raw_write(storage, "contract/theirs", b"theirs, id 3")
        assert again.put_if_absent("contract/theirs", b"mine") == Exists(b"theirs, id 3")
        assert not faulty.unfired

    def test_threads_share_one_storage(self, storage: Storage) -> None:
        """Eight threads write, read and delete objects of their own at the same time."""
        failures: list[BaseException] = []

        def work(number: int) -> None:
            key, content = f"contract/thread/{number}", b"%d" % number * 1000
            try:
                for _ in range(3):
                    storage.put(key, [content])
                    assert storage.read(key) == content
                    assert bytes(storage.read_range(key, 500, 10)) == content[500:510]
                    storage.delete([key])
            except BaseException as error:  # noqa: BLE001 - told below, in the test's thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert list(storage.list("contract/thread/")) == []

    def test_description_is_text(self, storage: Storage) -> None:
        """People get to see a root."""
        assert storage.description


class StorageConformance(OneProcessConformance):
    """All laws: those of one process, and those of a storage that several processes share."""

    race_processes = 6
    """Processes that race for each key."""
    process_race_rounds = 20
    """Keys that they race for."""

    def test_pickled_copy_serves_the_same_objects(self, storage: Storage) -> None:
        """A copy reads at once what the original wrote, and is fenced off by it."""
        copy: Storage = pickle.loads(pickle.dumps(storage))
        for number in range(10):
            storage.put(f"contract/original/{number}", [b"o%d" % number])
            assert copy.read(f"contract/original/{number}") == b"o%d" % number
        assert copy.put_if_absent("contract/original/0", b"c") == Exists(b"o0")
        assert copy.description == storage.description

    def test_race_of_processes(self, storage: Storage) -> None:
        """Of several processes one creates each key; the others see its complete bytes."""
        rounds = race_processes(
            storage, "contract/", racers=self.race_processes, rounds=self.process_race_rounds
        )
        assert len(rounds) == self.process_race_rounds
        self._judge_race(storage, rounds, racers=self.race_processes)

    def test_forked_process_works(self, storage: Storage) -> None:
        """A storage that was used before a fork serves the child with connections of its own."""
        storage.put("contract/parent", [b"p"])
        child = os.fork()
        if child == 0:
            status = 1
            try:
                storage.put("contract/child", [storage.read("contract/parent"), b"c"])
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert storage.read("contract/child") == b"pc"
