"""Local files: the contract, the race of processes, what is synced, mapped and hidden."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from local_files import files_below

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.storage.contract import Created, Exists, Storage, folders_of
from durable_shuffle.shuffle.storage.create_race import race_processes
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.retrying import RetryingStorage
from durable_shuffle.shuffle.testing.storage_conformance import StorageConformance


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "deep" / "root"


class TestLocalStorage(StorageConformance):
    """All laws, with plain files as the way around the storage."""

    race_processes = 2
    """The race of eight is below."""

    @pytest.fixture
    def storage(self, root: Path) -> LocalStorage:
        return LocalStorage(root)

    def raw_write(self, storage: Storage, key: str, content: bytes) -> None:
        path = Path(storage.description.removeprefix("file:")) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def raw_read(self, storage: Storage, key: str) -> bytes | None:
        path = Path(storage.description.removeprefix("file:")) / key
        return path.read_bytes() if path.is_file() else None


def test_eight_processes_race_and_one_wins(root: Path) -> None:
    """In 1,000 rounds exactly one of eight processes creates, and nobody sees torn content."""
    rounds = race_processes(LocalStorage(root), "r/", racers=8, rounds=1000, size_bytes=3000)
    assert len(rounds) == 1000
    for number, claims in enumerate(rounds):
        assert len(claims) == 8
        assert len({claim.offered for claim in claims}) == 8
        (winner,) = (claim.offered for claim in claims if claim.created)
        assert [claim.existing for claim in claims if not claim.created] == [winner] * 7
        assert (root / "r" / "race" / f"{number:06d}").read_bytes() == winner
    assert len(files_below(root)) == 1000


def test_writes_leave_no_temporary_files(root: Path) -> None:
    """Created, refused or conflicting: only objects stay."""
    storage = LocalStorage(root)
    storage.put("a/b", [b"1"])
    storage.put_if_absent("a/b", b"2")
    with pytest.raises(ConflictError):
        storage.put("a/b", [b"3"])
    assert files_below(root) == ["a/b"]


def test_hidden_leftovers_are_invisible(root: Path) -> None:
    """What a killed writer left behind is neither listed nor readable."""
    storage = LocalStorage(root)
    storage.put("a/b", [b"1"])
    (root / "a" / ".0123.tmp").write_bytes(b"torn")
    assert [info.key for info in storage.list("a/")] == ["a/b"]


def test_object_is_synced_before_it_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order is: content to disk, name, folder to disk. A crash between them tears nothing."""
    events: list[str] = []
    fsync, link = os.fsync, os.link

    def spy_fsync(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}")
        events.append("sync folder" if target.is_dir() else "sync content")
        fsync(descriptor)

    def spy_link(source: str, target: str) -> None:
        events.append("name")
        link(source, target)

    storage = LocalStorage(root)
    storage.put("a/first", [b"x"])
    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(os, "link", spy_link)
    assert storage.put_if_absent("a/b", b"x") == Created()
    assert events == ["sync content", "name", "sync folder"]
    events.clear()
    assert storage.put_if_absent("a/b", b"y") == Exists(b"x")
    assert events == ["sync content", "name", "sync folder"], "a loser makes the winner durable too"


def test_new_folders_are_synced_from_the_root_down(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every folder above a new object is on disk too, also if another process made it."""
    synced: list[str] = []
    fsync = os.fsync

    def spy_fsync(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        fsync(descriptor)

    (root / "a").mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", spy_fsync)
    LocalStorage(root).put("a/b/c", [b"x"])
    assert {str(root.parent), str(root), str(root / "a"), str(root / "a" / "b")} <= set(synced)


def test_folder_removed_meanwhile_is_made_again(root: Path) -> None:
    """A clean-up that removed an empty folder does not break a writer that knew it."""
    storage = LocalStorage(root)
    storage.put("a/b", [b"x"])
    (root / "a" / "b").unlink()
    (root / "a").rmdir()
    storage.put("a/b", [b"y"])
    assert (root / "a" / "b").read_bytes() == b"y"


def test_link_whose_reply_was_lost_counts_as_ours(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS may answer "exists" to the repeat of our own link: the file says whose it is."""
    link = os.link

    def link_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    assert LocalStorage(root).put_if_absent("a", b"x") == Created()
    assert LocalStorage(root).put_if_absent("a", b"x") == Exists(b"x")


def test_a_name_that_is_taken_and_cannot_be_seen_is_no_answer(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS remembers for a while that a name was not there: it may be ours, or not."""
    patient, link = LocalStorage(root), os.link

    def link_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    def unseen(path: Path) -> os.stat_result:
        raise FileNotFoundError(2, "No such file or directory", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", link_twice)
        patched.setattr(os, "lstat", unseen)
        with pytest.raises(OutcomeUnknownError, match=r"name a is taken.*read the object back"):
            patient.put_if_absent("a", b"x")
    assert patient.put_if_absent("a", b"x") == Exists(b"x"), "the next try finds out"
    with monkeypatch.context() as patched:  # another client's file, deleted before it is read

        def taken(source: str, target: str) -> None:
            raise FileExistsError(17, "File exists", target)

        patched.setattr(os, "link", taken)
        patched.setattr(os.path, "samestat", lambda one, other: False)
        patched.setattr(os, "lstat", lambda path: None)
        with pytest.raises(UnavailableError, match="stood in the way"):
            patient.put_if_absent("b", b"x")
        with pytest.raises(UnavailableError, match="stood in the way"):
            patient.put("b", [b"x"])


def test_thousand_views_hold_no_descriptor(root: Path) -> None:
    """Views cost no file descriptor, however many live at the same time."""
    storage = LocalStorage(root)
    storage.put("a", [bytes(range(256)) * 4000])
    views = [storage.read_range("a", start, 100) for start in range(1000)]
    assert descriptors_below(root) == 0
    with (root / "a").open("rb"):
        assert descriptors_below(root) == 1  # one that is held is seen
    assert all(view[0] == start % 256 for start, view in enumerate(views))


def descriptors_below(folder: Path) -> int:
    """Return how many open files of this process lie in a folder; other threads open and close
    theirs meanwhile."""
    count = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            count += link.readlink().is_relative_to(folder)
    return count


def test_views_outlive_what_happens_to_the_file(root: Path) -> None:
    """A file that is cut short or deleted behind a reader's back costs it an error, never the
    process; what it was given before stays as it was."""
    storage = LocalStorage(root)
    storage.put("a", [b"x" * 1_000_000])
    view = storage.read_range("a", 10, 900_000)
    os.truncate(root / "a", 4096)
    assert bytes(view) == b"x" * 900_000
    with pytest.raises(CorruptDataError, match="expected at least 900010 bytes, found 4096"):
        storage.read_range("a", 10, 900_000)
    storage.delete(["a"])
    assert bytes(view) == b"x" * 900_000
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_file_that_shrinks_while_it_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length was right when it was opened: an error with both numbers."""
    storage = LocalStorage(root)
    storage.put("a", [b"x" * 1_000_000])
    read = os.preadv

    def cut_first(*arguments: Any) -> int:
        os.truncate(root / "a", 4096)
        return read(*arguments)

    monkeypatch.setattr(os, "preadv", cut_first)
    with pytest.raises(CorruptDataError, match=r"shrank while it was read.*900000.*found 4086"):
        storage.read_range("a", 10, 900_000)


def test_a_range_comes_whole_however_little_a_read_gives(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call to the system may give less than was asked for."""
    storage, data = LocalStorage(root), bytes(range(256)) * 40
    storage.put("a", [data])
    read = os.preadv

    def few(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return read(descriptor, [buffers[0][:100]], offset)

    monkeypatch.setattr(os, "preadv", few)
    assert bytes(storage.read_range("a", 5, 9000)) == data[5:9005]


def test_object_cut_short_is_corruption(root: Path) -> None:
    """A file that lost its end is an error with both lengths, never a short answer."""
    storage = LocalStorage(root)
    storage.put("a", [b"x" * 100])
    os.truncate(root / "a", 40)
    with pytest.raises(CorruptDataError, match="expected at least 60 bytes, found 40"):
        storage.read_range("a", 50, 10)


def test_links_inside_the_root_are_listed_and_not_followed(root: Path, tmp_path: Path) -> None:
    """Whoever reads what is listed is told that it is a link; the root is not left."""
    storage = LocalStorage(root)
    storage.put("a", [b"x"])
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"x")
    (root / "link").symlink_to(tmp_path / "outside")
    assert [info.key for info in storage.list("")] == ["a", "link"]
    with pytest.raises(CorruptDataError, match="link is a link"):
        storage.read("link")
    storage.delete(["link"])
    assert [info.key for info in storage.list("")] == ["a"]
    assert (tmp_path / "outside" / "secret").exists()


def test_key_below_an_object_cannot_be_created(root: Path) -> None:
    """On files an object is no folder: the error names the file and calls it a misuse."""
    storage = LocalStorage(root)
    storage.put("a", [b"x"])
    with pytest.raises(InvalidInputError, match="root/a is a file"):
        storage.put("a/b", [b"x"])
    with pytest.raises(NotFoundError):
        storage.read("a/b")


def test_temporary_files_of_killed_writers_can_be_listed_and_deleted(root: Path) -> None:
    """Only those with a writer's name, below the prefix; objects and other hidden files stay."""
    storage = LocalStorage(root)
    storage.put("job/a/b", [b"1"])
    storage.put("other/a", [b"1"])
    left = f"job/a/.{'0' * 32}.tmp"
    for name in (left, f"other/.{'1' * 32}.tmp", "job/a/.nfs0001", "job/.0123.tmp"):
        (root / name).write_bytes(b"torn")
    found = list(storage.temporary_files("job/"))
    assert [(info.key, info.size_bytes) for info in found] == [(left, 4)]
    assert found[0].modified_wall_seconds == (root / left).stat().st_mtime
    before = files_below(root)
    for _ in range(2):
        storage.delete_temporary([info.key for info in found])
        assert files_below(root) == sorted(set(before) - {left})
    assert list(storage.temporary_files("job/")) == []
    assert list(storage.temporary_files("absent/")) == []


@pytest.mark.parametrize("key", ["a/b", f"../.{'0' * 32}.tmp", "a/.x.tmp", f"a/{'0' * 32}.tmp"])
def test_only_temporary_files_are_deleted_as_such(root: Path, key: str) -> None:
    """No object and nothing outside the root."""
    storage = LocalStorage(root)
    storage.put("a/b", [b"1"])
    with pytest.raises(InvalidInputError):
        storage.delete_temporary([key])
    assert files_below(root) == ["a/b"]


def test_writer_whose_temporary_file_is_deleted_fails_and_leaves_nothing(root: Path) -> None:
    """It was taken for dead: its write is an error, never an object of other bytes."""

    class Interrupted(LocalStorage):
        def _link(self, hidden: Path, path: Path) -> bool:
            self.delete_temporary([info.key for info in self.temporary_files("")])
            return super()._link(hidden, path)

    with pytest.raises(DurableShuffleError):
        Interrupted(root).put("a/b", [b"1"])
    assert files_below(root) == []


def test_a_long_object_may_be_put_again(root: Path) -> None:
    """A put whose reply was lost is sent again, whatever its length; other bytes conflict."""
    storage, data = LocalStorage(str(root)), bytes(65 << 20)
    storage.put("a", [data])
    storage.put("a", [data[: 1 << 20], data[1 << 20 :]])
    for other in (data[:-1], data + b"x", data[:-1] + b"x"):
        with pytest.raises(ConflictError):
            storage.put("a", [other])


def test_folders_are_listed_without_what_they_hold(tmp_path: Path) -> None:
    """Hidden names and files are none."""
    storage = LocalStorage(tmp_path)
    for key in ("job/b/1", "job/a/x/1", "job/file", "jobs/c/1"):
        storage.put(key, [b"x"])
    (tmp_path / "job" / ".hidden").mkdir()
    assert folders_of(storage, "job/") == ("a", "b")
    assert folders_of(RetryingStorage(storage), "") == ("job", "jobs")
    assert folders_of(storage, "job/nothing/") == ()


def test_empty_folders_are_removed_and_writers_make_them_again(tmp_path: Path) -> None:
    """Only those that hold nothing, at and below the prefix; a late writer finds no folder."""
    storage = LocalStorage(tmp_path)
    for key in ("job/s/a/x/1", "job/s/b/1", "job/t/1"):
        storage.put(key, [b"x"])
    storage.delete(["job/s/a/x/1"])
    storage.remove_empty_folders("job/s/")
    assert files_below(tmp_path) == ["job/s/b/1", "job/t/1"]
    assert not (tmp_path / "job" / "s" / "a").exists()
    storage.delete(["job/s/b/1"])
    storage.remove_empty_folders("job/s/")
    assert [entry.name for entry in (tmp_path / "job").iterdir()] == ["t"]
    storage.put("job/s/a/x/2", [b"late"])
    assert storage.read("job/s/a/x/2") == b"late"
