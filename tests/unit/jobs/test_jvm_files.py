"""The Java reader of files against Python's reader of the same files: rows, and damage.

There is no Spark session here, only a JVM with a small heap. Each access to memory is checked.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from java_reader import Failed, Reader, changed, harmed_frame, harmed_index, stated
from plain_jvm import java_class, new_object, plain_jvm
from pyspark.sql.types import LongType, StringType, StructField, StructType
from random_rows import random_batch, random_schema
from repaired import WRITING, make, repair, run_again
from round_trips import folders_are_far
from sealed_stage import sealed_stage
from small_stage import SMALL, SeededIds, new_stage, seal, write

from durable_shuffle.jobs.engine.arrow_schema import narrow_arrow_schema
from durable_shuffle.jobs.jvm_rows.decoder import decoder_text
from durable_shuffle.jobs.jvm_rows.files import folder_of
from durable_shuffle.jobs.jvm_rows.kinds import column_kinds
from durable_shuffle.serialization.arrow_checks import MAX_INFLATED_BYTES
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, require_seal
from durable_shuffle.shuffle.release.stages import release_stage
from durable_shuffle.shuffle.repair.heal import heal_stage
from durable_shuffle.shuffle.seal.index import entry_offset
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.retrying import RetryingStorage

pytestmark = pytest.mark.spark

NUMBERED = StructType([StructField("n", LongType()), StructField("text", StringType())])
TRIALS, MANY = 2_000, 100_000

MakeReader = Callable[..., Reader]


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    with plain_jvm(heap="256m") as gateway:
        yield gateway


@pytest.fixture(scope="module")
def reader(jvm: Any) -> MakeReader:
    """Return a function that makes the reader of a stage."""
    found = java_class(jvm, "CheckedMemory", "DecoderHarness")

    def make_reader(
        stage: StageHandle, schema: StructType = NUMBERED, settings: Settings = SMALL
    ) -> Reader:
        kinds = column_kinds(schema, narrow_arrow_schema(schema))
        arguments = [decoder_text(), kinds, schema.json(), MAX_INFLATED_BYTES, True]
        java = new_object(jvm, found, arguments)
        return Reader(jvm, java, stage, require_seal(stage), settings)

    return make_reader


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def ids(seed: int) -> SeededIds:
    return SeededIds(random.Random(seed))


def test_rows_of_every_type(root: Path, ids: SeededIds, reader: MakeReader) -> None:
    """Random schemas and rows, all compressions, one partition per producer too."""
    for compression in ("lz4", "zstd", "none"):
        for partitioner in ("hash", "passthrough"):
            rng = ids.random
            schema = random_schema(rng, columns=rng.choice((0, 4, 9)), depth=3)
            stored = narrow_arrow_schema(schema)
            shape = {"partitions": 3, "producers": 3, "partitioner": partitioner}
            stage = new_stage(
                open_storage(str(root)), ids, stored, compression=compression, **shape
            )
            for p in range(3):
                batch = random_batch(rng, stored, rng.choice((0, 30, 200)))
                to = [rng.randrange(3) if partitioner == "hash" else p for _ in range(len(batch))]
                write(stage, p, [(batch, np.array(to, np.uint16))], ids.new_id(), producers=3)
            seal(stage, 3, ids.new_id())
            read = reader(stage, schema)
            assert len(read.same()) == 3
            assert len(read.same([(0, 2), (2, 3)])) == 2
            assert len(read.same([(0, 3)])) == 1


@pytest.mark.parametrize("compact", [False, True], ids=["segments", "compacted"])
def test_groups_and_compaction(
    root: Path, ids: SeededIds, reader: MakeReader, *, compact: bool
) -> None:
    """Rows come in the same order wherever their extents lie."""
    made = make(ids, open_storage(str(root)), compact=compact)  # type: ignore[arg-type]
    rows = reader(made.stage)
    apart, joined = rows.same(), rows.same([(0, 1), (1, 3)])
    assert len(apart[1]) + len(apart[2]) == len(joined[1])
    assert ("compacted/" in rows.extents()[0].key) == compact


def test_a_repaired_stage(root: Path, ids: SeededIds, reader: MakeReader) -> None:
    """A reader from before the repair gets an error; one from after it, the rows."""
    made = make(ids, open_storage(str(root)), compact=False)  # type: ignore[arg-type]
    before = reader(made.stage)
    rows = before.same()
    flip(next(root.rglob("p000001-*-0.seg")), 100)
    repair(made.stage, ids)
    run_again(made, [1], ids)
    assert reader(made.stage).same() == rows
    assert isinstance(before.from_files([(0, 3)], 0), Failed)


def test_damage_is_noted_once_while_nobody_has_looked(
    root: Path, ids: SeededIds, reader: MakeReader
) -> None:
    """Java's record is one that Python reads. A check that found nothing lets the next read note
    again; behind a release nothing is noted."""
    made = make(ids, open_storage(str(root)), compact=False)  # type: ignore[arg-type]
    rows = reader(made.stage)
    segment = next(root.rglob("p000001-*-0.seg"))
    content = segment.read_bytes()
    for noted in (3, 3, 5):
        if noted == 5:
            segment.write_bytes(content)
            check = heal_stage(
                made.stage.storage,
                made.stage.path,
                SMALL,
                ids=ids,
                generation=1,
                clock=SystemClock(),
            )
            assert check.outcome == "intact"
        flip(segment, 100)
        assert isinstance(rows.from_files([(0, 3)], 0), Failed)
        assert read_state(made.stage).next_slot == noted
        assert read_state(made.stage).suspect
        segment.write_bytes(content)
    release_stage(made.stage, ids, generation=1, producers=4, cause="the test")
    end = read_state(made.stage).next_slot
    assert isinstance(rows.from_files([(0, 3)], 0), Failed)
    assert read_state(made.stage).next_slot == end


def test_a_record_in_many_frames(root: Path, ids: SeededIds, reader: MakeReader) -> None:
    """A row over the limit of a frame, between short ones."""
    settings = Settings(writer_memory_bytes=1 << 16, max_frame_bytes=1 << 20, compression="none")
    stored = narrow_arrow_schema(NUMBERED)
    stage = new_stage(open_storage(str(root)), ids, stored, partitions=1, compression="none")
    texts = ["a", "é" * 2_700_000, "b", ids.random.randbytes(3_000_000).hex()]
    batch = pa.record_batch([[1, 2, 3, 4], texts], schema=stored)
    write(stage, 0, [(batch, np.zeros(4, np.uint16))], ids.new_id(), settings=settings)
    seal(stage, 1, ids.new_id())
    (found,) = reader(stage, settings=settings).same()
    assert found.count("é".encode()) == 2_700_000


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << 4
    path.write_bytes(data)


def linked(path: Path) -> None:
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)


def linked_folder(path: Path) -> None:
    other = path.parent.with_name("elsewhere")
    path.parent.rename(other)
    path.parent.symlink_to(other)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


# harm, error, a word of its text
HARMS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "header": (lambda path: flip(path, 9), "CorruptDataError", "frame at byte 0: header CRC"),
    "magic": (lambda path: flip(path, 2), "CorruptDataError", "frame at byte 0: magic"),
    "body": (lambda path: flip(path, 60), "CorruptDataError", "body CRC"),
    "cut": (cut, "CorruptDataError", "too short"),
    "empty": (lambda path: os.truncate(path, 0), "CorruptDataError", "too short"),
    "gone": (Path.unlink, "NotFoundError", "was the stage released"),
    "linked": (linked, "CorruptDataError", "is a link"),
    "linked folder": (linked_folder, "CorruptDataError", "is a link"),
    "pipe": (pipe, "CorruptDataError", "a special file"),
    "folder": (folder, "CorruptDataError", "a special file"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_harmed_segment_is_an_error_that_names_it(
    root: Path, ids: SeededIds, reader: MakeReader, harm: str
) -> None:
    """An error of the class that Python raises, and never fewer rows."""
    do, kind, word = HARMS[harm]
    read = reader(sealed_stage(open_storage(str(root)), ids, settings=WRITING).stage)
    key = next(extent.key for extent in read.extents() if extent.offset == 0)
    do(root / key)
    of_python = read.from_blocks([(0, 2)], 0)
    found = read.from_files([(0, 2)], 0)
    assert isinstance(found, Failed)
    assert isinstance(of_python, Failed)
    assert (found.kind, of_python.kind) == (kind, kind)
    assert word in found.text
    # a link may be in a folder above
    assert key in found.text or (harm == "linked folder" and key.rpartition("/")[0] in found.text)


INDEX_HARMS = {
    "entry": (lambda path: flip(path, entry_offset(1) + 9), "an index entry is damaged"),
    "slice": (lambda path: flip(path, path.stat().st_size - 30), "an index slice is damaged"),
    "cut": (cut, "too short"),
    "linked": (linked, "is a link"),
}


@pytest.mark.parametrize("harm", INDEX_HARMS)
def test_a_harmed_index_is_an_error_that_names_it(
    root: Path, ids: SeededIds, reader: MakeReader, harm: str
) -> None:
    do, word = INDEX_HARMS[harm]
    read = reader(sealed_stage(open_storage(str(root)), ids, settings=WRITING).stage)
    do(root / read.index_key)
    found = read.from_files(None, 1)
    assert isinstance(found, Failed)
    assert (found.kind, read.from_blocks(None, 1).kind) == ("CorruptDataError",) * 2  # type: ignore[union-attr]
    assert word in found.text
    assert read.index_key in found.text


def test_an_intact_frame_of_another_place_is_refused(
    root: Path, ids: SeededIds, reader: MakeReader
) -> None:
    """The address is part of the checksum."""
    read = reader(sealed_stage(open_storage(str(root)), ids, settings=WRITING).stage)
    mine, theirs = (next(e for e in read.extents() if e.producer == p) for p in (0, 1))
    shutil.copyfile(root / theirs.key, root / mine.key)
    found = read.from_files(None, 0)
    assert isinstance(found, Failed)
    assert found.kind == "CorruptDataError"
    assert mine.key in found.text


def test_a_stated_length_takes_no_memory(root: Path, ids: SeededIds, reader: MakeReader) -> None:
    """An extent of 8 GiB in a sparse file, read with a heap of 256 MiB."""
    read = reader(sealed_stage(open_storage(str(root)), ids, settings=WRITING).stage)
    extent, length = read.extents()[0], 8 << 30
    path, index = root / extent.key, root / read.index_key
    data = index.read_bytes()
    forged = stated(read, data, 0, 0, "length", length)
    os.truncate(path, length + extent.offset)
    with changed(index, forged):
        found = read.from_files(None, 0)
    assert isinstance(found, Failed)
    assert found.kind == "CorruptDataError"
    assert extent.key in found.text


def test_a_released_stage_says_so(root: Path, ids: SeededIds, reader: MakeReader) -> None:
    read = reader(sealed_stage(open_storage(str(root)), ids, settings=WRITING).stage)
    for path in root.rglob("*"):
        if path.is_file() and "log" not in path.parts:
            path.unlink()
    found = read.from_files(None, 0)
    assert isinstance(found, Failed)
    assert found.kind == "NotFoundError"
    assert "was the stage released?" in found.text


UNREADABLE = Path("/sys/devices/virtual/net/lo/duplex")
"""A regular file of the kernel whose read fails with EINVAL."""


@pytest.mark.skipif(not UNREADABLE.exists(), reason="this system has no such file")
def test_a_failing_read_is_tried_again(root: Path, ids: SeededIds, reader: MakeReader) -> None:
    """For as long as the settings say, then it is UnavailableError with the number of tries."""
    read = reader(sealed_stage(open_storage(str(root)), ids, settings=WRITING).stage)
    place = {"root": str(UNREADABLE.parent), "index": UNREADABLE.name}
    found = read.from_other(**place, call_seconds=1.0)
    assert isinstance(found, Failed)
    assert found.kind == "UnavailableError"
    assert int(found.text.rpartition("tries=")[2]) > 1


def test_only_the_plain_storage_of_a_folder_counts(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other storages and layers may do what Java does not know of."""

    class Own(LocalStorage):
        pass

    class Layer(RetryingStorage):
        pass

    assert folder_of(open_storage(str(root))) == str(root.resolve())
    assert folder_of(LocalStorage(root)) is None
    assert folder_of(RetryingStorage(Own(root))) is None
    assert folder_of(Layer(LocalStorage(root))) is None
    assert folder_of(RetryingStorage(MemoryStorage())) is None
    folders_are_far(monkeypatch)
    assert folder_of(open_storage(str(root))) is None


def harmed(read: Reader, root: Path, rng: random.Random) -> tuple[Path, bytes]:
    """Return a file of the stage and the bytes that it gets."""
    extents = read.extents()
    extent = rng.choice(extents)
    path = root / (read.index_key if rng.random() < 0.4 else extent.key)
    data = path.read_bytes()
    if rng.random() < 0.8:
        if path.name == extent.key.rpartition("/")[2]:
            return path, harmed_frame(read, data, extent, rng)
        return path, harmed_index(read, data, rng.randrange(2), rng)
    found = bytearray(data)
    found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
    return path, bytes(found[: rng.choice((len(found), len(found), rng.randrange(len(found))))])


def fuzzed(root: Path, ids: SeededIds, reader: MakeReader, trials: int) -> None:
    """Harm one file at a time: the rows or the class of the error are those of Python's reader."""
    made = sealed_stage(
        open_storage(str(root)), ids, rows=40, chars=30, settings=Settings(frame_bytes=1024)
    )
    read, rng = reader(made.stage), ids.random
    sound = read.same([(0, 2)])[0]
    kinds: Counter[str] = Counter()
    for trial in range(trials):
        path, data = harmed(read, root, rng)
        with changed(path, data):
            found = read.from_files([(0, 2)], 0)
            of_python = read.from_blocks([(0, 2)], 0)
        text = f"{trial=} {path.name} java={found!r:.600} python={of_python!r:.600}"
        if isinstance(found, Failed):
            kinds[found.kind] += 1
            assert isinstance(of_python, Failed), text
            assert found.kind == of_python.kind, text
        else:
            kinds["same rows" if found == sound else "other rows"] += 1
            assert found == of_python, text
    print(kinds)
    assert kinds["CorruptDataError"] > trials / 3
    assert "foreign" not in kinds


@pytest.mark.soak
def test_harmed_files_give_what_python_gives(
    root: Path, ids: SeededIds, reader: MakeReader
) -> None:
    """A sample, most of it with right checksums."""
    fuzzed(root, ids, reader, TRIALS)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_harmed_files(root: Path, ids: SeededIds, reader: MakeReader) -> None:
    fuzzed(root, ids, reader, MANY)
