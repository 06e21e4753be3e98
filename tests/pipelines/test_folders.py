"""Files that appear in a folder: what a record and a successor cost, any storage, bad files."""

import json
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from one_consumer import ROWS, OneConsumer
from one_source import attempt, in_folder, stored

from durable_shuffle.recovery.job.phases import TaskPhase
from durable_shuffle.recovery.pipeline.plan import positions
from durable_shuffle.recovery.pipeline.plan.folder import FolderSource
from durable_shuffle.recovery.pipeline.plan.positions import CollectedNames, positions_of
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.log.appender_log import Append, appender_log


class Collects:
    collects = True


class Kept:
    """What a log holds, slot by slot, without a log."""

    def __init__(self) -> None:
        self.slots: dict[int, bytes] = {}
        self.reads = 0

    def read(self, slot: int) -> bytes:
        self.reads += 1
        return self.slots[slot]

    def opened(self) -> CollectedNames:
        last = self.slots[max(self.slots)] if self.slots else b""
        found = positions_of(Collects(), last, name="in", producer=0, stored_in=self.read)
        assert isinstance(found, CollectedNames)
        return found


@pytest.mark.parametrize("per_record", [1, 3, 700])
def test_names_are_stored_about_once(per_record: int) -> None:
    """Twenty thousand of them, with restarts on the way: neither a record nor a restart grows."""
    kept, count = Kept(), 20_000 if per_record > 1 else 6_000
    mine = kept.opened()
    names = [f"events-2026-01-01-{n:08d}.json" for n in range(count)]
    for slot, first in enumerate(range(0, count, per_record)):
        if slot % 97 == 5:
            kept.reads = 0
            mine = kept.opened()
            assert mine.start == frozenset(names[:first])
            assert kept.reads <= first / positions.MOST_NAMES * 2 + 14
        for name in names[first : first + per_record]:
            mine.take(name)
        if slot % 7 == 0 and slot:  # a marker alone: the same names again
            kept.slots[slot * 2] = mine.encode(slot * 2)
        else:
            kept.slots[slot * 2] = mine.encode(slot * 2)
            kept.slots[slot * 2 + 1] = mine.encode(slot * 2 + 1)
    assert kept.opened().start == frozenset(names)
    sizes = [len(data) for data in kept.slots.values()]
    once = sum(map(len, names))
    assert max(sizes) < (positions.MOST_NAMES + per_record) * 33
    assert sum(sizes) < 2 * 13 * once, "each O(log) times, twice since each record is repeated"
    with pytest.raises(InvalidInputError, match="each once"):
        mine.take(names[0])


def test_a_node_that_is_another_one_is_refused() -> None:
    """By its slot: nothing is read again or passed over because of it."""
    kept, mine = Kept(), CollectedNames("in", [])
    for slot in range(7):
        mine.take(str(slot))
        kept.slots[slot] = mine.encode(slot)
    kept.slots[5] = kept.slots[1]
    with pytest.raises(CorruptDataError, match="slot 5"):
        kept.opened()


def test_a_folder_costs_as_much_per_file_however_many_there_were(
    one: OneConsumer, tmp_path: Path
) -> None:
    """A record with the 2,001st name is not longer than one with the first; a restart finds all."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    for n in range(2000):
        (folder / f"{n:05d}.json").write_text(f'{{"n": {n}}}\n')
    (folder / "DONE").touch()
    source = FolderSource(str(folder), "json", ROWS, until="DONE")
    assert attempt(one, source)[-1].phase is TaskPhase.FINISHED
    assert stored(one, "r") == list(range(2000))
    log = appender_log(one.stage.producer_log(0))
    sizes = [len(r.after.source_position) for _, r in log.records() if isinstance(r, Append)]
    assert len(sizes) > 500
    assert sum(sizes) < 13 * 2000 * len("00000.json") * 1.5


def test_a_source_of_the_other_kind_does_not_go_on(one: OneConsumer, tmp_path: Path) -> None:
    """A number is no set of names, and a set of names is no number."""
    in_folder(tmp_path, "a.json", [0, 1, 2])

    def fails(position: Any, producer: int) -> Any:
        yield [{"n": n} for n in range(3)], 3
        while appender_log(one.stage.producer_log(0)).record(1) is None:
            yield None
        raise OSError("away")

    assert attempt(one, IteratorSource(fails))[-1].phase is TaskPhase.FAILED
    failure = attempt(one, FolderSource(str(tmp_path), "json", ROWS), epoch=2)[-1].failure
    assert failure is not None
    assert failure.kind == "incompatible"


def test_a_folder_of_any_storage(one: OneConsumer) -> None:
    """By URL; files that appear while it is read, one that is taken away, one that ends it."""
    files = fsspec.filesystem("memory")
    root = f"/inbox-{one.ids.new_id()}"

    def put(name: str, *numbers: int) -> None:
        lines = "".join(json.dumps({"n": n}) + "\n" for n in numbers)
        files.pipe_file(f"{root}/{name}", lines.encode())

    source = FolderSource(f"memory:/{root}", "json", ROWS, until="DONE")
    seen = source.read(None, 0, 1)
    assert next(seen) is None, "no object yet, so no folder"
    put("b.json", 1, 2)
    put("a b (1).json", 0)
    put("inside/c.json", 9)
    put("_hidden.json", 9)
    put("z.json", 9)
    tables = [next(seen), next(seen)]
    names = [item[1].partition("/")[2] for item in tables if item]
    assert names == ["a b (1).json", "b.json"]
    files.rm_file(f"{root}/z.json")
    put("DONE")
    assert [item for item in seen if item] == [], "z.json is not there any more"
    put("c.json", 3)
    assert attempt(one, source)[-1].phase is TaskPhase.FINISHED
    assert stored(one, "r") == [0, 1, 2, 3]


def test_credentials_of_a_folder_stay_out_of_messages(one: OneConsumer) -> None:
    """Neither the source nor its errors show an option that is a secret."""
    options = {"key": "AKIA-very-secret", "secret": "another-secret"}
    source = FolderSource("s3://no-such-bucket/inbox", "json", ROWS, storage_options=options)
    assert "secret" not in repr(source)
    failing = FolderSource("ftp://nobody:very-secret@nowhere/in", "json", ROWS)
    failure = attempt(one, failing)[-1].failure
    assert failure is not None
    assert "very-secret" not in failure.text


def test_files_that_do_not_fit_are_passed_over_if_asked_to(
    one: OneConsumer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Named in the log, and not read again; the others count."""
    for name, text in (("a", '{"n": 0}'), ("b", "no JSON"), ("c", '{"n": 1}')):
        (tmp_path / f"{name}.json").write_text(f"{text}\n")
    (tmp_path / "DONE").touch()
    source = FolderSource(str(tmp_path), "json", ROWS, until="DONE", on_error="skip")
    assert attempt(one, source)[-1].phase is TaskPhase.FINISHED
    assert stored(one, "r") == [0, 1]
    assert "b.json" in caplog.text


def _read(source: FolderSource, position: Any = None) -> list[str]:
    """Return the positions of the files that are there now."""
    found = []
    for item in source.read(position, 0, 1):
        if item is None:
            return found
        found.append(item[1])
    return found


def test_a_position_is_of_one_folder(tmp_path: Path) -> None:
    """Files of another folder have the same names (part-0, part-1): they are not taken for read."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part-0.json").write_text('{"n": 1}\n')
    one, two = (FolderSource(str(tmp_path / name), "json", ROWS) for name in ("one", "two"))
    position = _read(one)
    assert len(position) == 1
    assert _read(one, position) == []
    for other in (two, FolderSource(str(tmp_path / "one"), "csv", ROWS)):
        with pytest.raises(IncompatibleError, match="give the source another name"):
            _read(other, position)
    with pytest.raises(IncompatibleError):
        _read(one, ["part-0.json"])


def test_a_file_that_is_away_for_a_moment_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An uploader replaces a file by delete and put, right between the listing and the read."""
    (tmp_path / "a.json").write_text('{"n": 1}\n')
    source = FolderSource(str(tmp_path), "json", ROWS)
    read, away = Path.read_bytes, [True]

    def missing_once(path: Path) -> bytes:
        if path.name == "a.json" and away:
            away.clear()
            raise FileNotFoundError(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", missing_once)
    items = source.read(None, 0, 1)
    first = next(items)
    item = first if first is not None else next(items)
    assert not away, "the file was never away"
    assert item is not None
    assert item[0].column("n").to_pylist() == [1]


@pytest.mark.parametrize("names", [("n",), ("n", "m", "more"), ("n", "M")])
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_other_columns_than_the_schema_has_are_refused(
    tmp_path: Path, kind: str, names: tuple[str, ...]
) -> None:
    """No format gives nulls for a column that the file does not have, or drops one."""
    schema = pa.schema([("n", pa.int64()), ("m", pa.int64())])
    table = pa.table({name: [1, 2] for name in names})
    path = tmp_path / f"a.{kind}"
    pq.write_table(table, path) if kind == "parquet" else pa.csv.write_csv(table, path)
    with pytest.raises(InvalidInputError, match=r"misses m|also has more"):
        _read(FolderSource(str(tmp_path), kind, schema))
    whole = pa.table({"m": [3], "n": [4]})
    pq.write_table(whole, path) if kind == "parquet" else pa.csv.write_csv(whole, path)
    item = next(FolderSource(str(tmp_path), kind, schema).read(None, 0, 1))
    assert item is not None
    assert item[0].to_pylist() == [{"n": 4, "m": 3}]


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_a_field_that_is_not_nullable_has_a_value(tmp_path: Path, kind: str) -> None:
    """Neither a null nor a missing field of JSON counts as one; the file is named."""
    rows = [{"k": 1, "cents": 5}, {"k": 2, "cents": None}]
    table, path = pa.Table.from_pylist(rows), tmp_path / f"f.{kind}"
    if kind == "json":
        path.write_text('{"k": 1, "cents": 5}\n{"k": 2}\n')
    elif kind == "csv":
        pa.csv.write_csv(table, path)
    else:
        pq.write_table(table, path)
    fields = [pa.field("k", pa.int64()), pa.field("cents", pa.int64(), nullable=False)]
    strict = FolderSource(str(tmp_path), kind, pa.schema(fields), until="DONE")
    with pytest.raises(InvalidInputError, match=rf"f\.{kind}.*cents"):
        next(strict.read(None, 0, 1))
    plain = pa.schema([("k", pa.int64()), ("cents", pa.int64())])
    item = next(FolderSource(str(tmp_path), kind, plain).read(None, 0, 1))
    assert item is not None
    assert item[0].to_pylist() == rows
