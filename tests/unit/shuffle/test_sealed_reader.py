"""Reading a sealed stage: exactly the rows, or an error; never fewer rows without a word."""

import dataclasses
import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from changed_index import entries_of, with_entries
from small_stage import (
    SMALL,
    Row,
    SeededIds,
    model_of,
    new_stage,
    partition_of,
    read_rows,
    seal,
    write,
)

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read import sealed_reader
from durable_shuffle.shuffle.read.sealed_reader import (
    join_small,
    read_group,
    read_subpartition,
    small_index,
)
from durable_shuffle.shuffle.release.stages import release_stage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.segments import IdBatch

PRODUCERS, PARTITIONS = 3, 4
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def batches(producer: int) -> list[IdBatch]:
    """Three batches of about 40 kB: two segments. Partition 3 stays empty; producer 2 is."""
    made = []
    for b in range(3 if producer < 2 else 0):
        keys = list(range(b * 20, b * 20 + 20))
        values = [f"{producer}:{k}:".ljust(2000, "x") for k in keys]
        batch = pa.record_batch([keys, values], schema=SCHEMA)
        made.append((batch, np.array([k % 3 for k in keys], np.uint16)))
    return made


INPUTS = [batches(p) for p in range(PRODUCERS)]


@pytest.fixture
def stage(storage: MemoryStorage, ids: SeededIds) -> StageHandle:
    """A stage, written and sealed."""
    stage = new_stage(storage, ids, SCHEMA, partitions=PARTITIONS, compression="none")
    for p in range(PRODUCERS):
        write(stage, p, INPUTS[p], ids.new_id(), producers=PRODUCERS)
    seal(stage, PRODUCERS, "5" * 32)
    return stage


@pytest.fixture
def sealed(stage: StageHandle, ids: SeededIds) -> Seal:
    """Its seal."""
    return seal(stage, PRODUCERS, ids.new_id())


def expected(k: int) -> list[Row]:
    """Rows of partition k by the dictionary."""
    return partition_of(model_of(INPUTS), k, PRODUCERS)


def segments(stage: StageHandle) -> list[str]:
    """Keys of all segments."""
    return [i.key for i in stage.storage.list(stage.path.segments_prefix)]


def replace(stage: StageHandle, key: str, content: bytes) -> None:
    """Change an object behind the library's back."""
    stage.storage.delete([key])
    stage.storage.put_if_absent(key, content)


def outcome(stage: StageHandle, sealed: Seal, k: int) -> str:
    """ "right" or the error's name; anything else fails the test."""
    try:
        found = read_rows(stage, sealed, k)
    except (CorruptDataError, IncompatibleError, NotFoundError) as error:
        return type(error).__name__
    assert found == expected(k)
    return "right"


def test_partitions_read_as_the_dictionary(stage: StageHandle, sealed: Seal) -> None:
    """All rows, producers in order, each producer's rows in order; the empty ones are empty."""
    assert len(segments(stage)) == 4
    for k in range(PARTITIONS):
        assert read_rows(stage, sealed, k) == expected(k)
    assert expected(3) == []


@pytest.mark.parametrize("piece", [1000, 30_000])
def test_long_extents_are_read_in_pieces(
    stage: StageHandle, sealed: Seal, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extents over `writer_memory_bytes` give the same rows; a lost segment is named."""
    monkeypatch.setattr(sealed_reader, "PIECE_BYTES", piece)
    settings = dataclasses.replace(SMALL)
    object.__setattr__(settings, "writer_memory_bytes", 1)  # below what a user may set
    for k in range(PARTITIONS):
        assert read_rows(stage, sealed, k, settings) == expected(k)
        group = read_group(stage, sealed, k, k + 1, settings)
        assert [row for batch in group for row in batch.to_pylist()] == expected(k)
    stage.storage.delete(segments(stage))
    with pytest.raises(NotFoundError, match="segments/"):
        read_rows(stage, sealed, 0, settings)


@pytest.mark.parametrize("k", [-1, PARTITIONS, 2**40])
def test_a_subpartition_that_does_not_exist_is_refused(
    stage: StageHandle, sealed: Seal, k: int
) -> None:
    """Never read as empty."""
    with pytest.raises(InvalidInputError, match=rf"found=\[{k}, {k + 1}\) partitions=4"):
        read_rows(stage, sealed, k)


@pytest.mark.requirement("R-F135-18")
def test_a_segment_cut_anywhere_is_an_error_where_it_matters(
    stage: StageHandle, sealed: Seal, seed: int
) -> None:
    """Cut at 60 places: partitions whose bytes are gone fail, the others read right."""
    rng = random.Random(seed)
    seen = set()
    for _ in range(60):
        key = rng.choice(segments(stage))
        whole = stage.storage.read(key)
        replace(stage, key, whole[: rng.randrange(len(whole))])
        found = [outcome(stage, sealed, k) for k in range(PARTITIONS)]
        assert "CorruptDataError" in found
        assert set(found) <= {"CorruptDataError", "right"}
        seen |= set(found)
        replace(stage, key, whole)
    assert seen == {"CorruptDataError", "right"}


@pytest.mark.requirement("R-F135-18")
def test_bytes_beyond_the_committed_length_are_invisible(stage: StageHandle, sealed: Seal) -> None:
    """A torn tail behind a segment changes nothing."""
    for key in segments(stage):
        whole = stage.storage.read(key)
        replace(stage, key, whole + whole[:100] + b"\xff" * 37)
    for k in range(PARTITIONS):
        assert read_rows(stage, sealed, k) == expected(k)


def test_every_bit_flip_in_a_segment_is_noticed(
    stage: StageHandle, sealed: Seal, seed: int
) -> None:
    """Of 200 random ones, each makes the partition that holds it fail, and no other."""
    rng = random.Random(seed)
    for _ in range(200):
        key = rng.choice(segments(stage))
        whole = stage.storage.read(key)
        damaged = bytearray(whole)
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        replace(stage, key, bytes(damaged))
        found = sorted(outcome(stage, sealed, k) for k in range(PARTITIONS))
        assert found[1:] == ["right"] * 3
        assert found[0] in ("CorruptDataError", "IncompatibleError")
        replace(stage, key, whole)


def test_a_bit_flip_in_the_index_never_gives_other_rows(
    stage: StageHandle, sealed: Seal, seed: int
) -> None:
    """Of 200 random ones: an error for the partition that it concerns, right rows for others."""
    rng = random.Random(seed)
    key = stage.path.index_key(sealed.index)
    whole = stage.storage.read(key)
    for _ in range(200):
        damaged = bytearray(whole)
        at = rng.randrange(40, len(damaged))  # readers do not need the 40 bytes of the header
        damaged[at] ^= 1 << rng.randrange(8)
        replace(stage, key, bytes(damaged))
        found = sorted(outcome(stage, sealed, k) for k in range(PARTITIONS))
        assert found == ["CorruptDataError", "right", "right", "right"]
    replace(stage, key, whole)


def test_the_error_names_segment_bytes_and_subpartition(stage: StageHandle, sealed: Seal) -> None:
    """What a person needs in order to look."""
    key = segments(stage)[0]
    damaged = bytearray(stage.storage.read(key))
    damaged[30] ^= 1
    replace(stage, key, bytes(damaged))
    with pytest.raises(CorruptDataError) as caught:
        [read_rows(stage, sealed, k) for k in range(PARTITIONS)]
    assert key in str(caught.value)
    assert "bytes=[0, " in str(caught.value)
    assert "subpartition=" in str(caught.value)


def test_a_missing_segment_is_not_found(stage: StageHandle, sealed: Seal) -> None:
    """Missing never reads as empty; the message names the segment."""
    key = segments(stage)[0]
    stage.storage.delete([key])
    for k in range(3):
        with pytest.raises(NotFoundError, match=key.rsplit("/", 1)[1]):
            read_rows(stage, sealed, k)
    assert read_rows(stage, sealed, 3) == []


def test_an_index_that_came_with_the_stage_is_checked_like_a_read_one(
    stage: StageHandle, sealed: Seal
) -> None:
    """A flipped bit is found; bytes of another index are not used; of a lost one there are none."""
    key, data = small_index(stage, sealed) or ("", b"")
    elsewhere = dataclasses.replace(stage, index=(f"{key}x", b"of another seal"))
    assert outcome(elsewhere, sealed, 0) == "right"
    stage.storage.delete([key])
    assert small_index(stage, sealed) is None
    assert outcome(dataclasses.replace(stage, index=(key, data)), sealed, 0) == "right"
    for at in range(40, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 4
        bad = dataclasses.replace(stage, index=(key, bytes(damaged)))
        found = sorted(outcome(bad, sealed, k) for k in range(PARTITIONS))
        assert found == ["CorruptDataError", "right", "right", "right"]


def test_a_missing_index_is_not_found(stage: StageHandle, sealed: Seal) -> None:
    """Not even the partition without rows reads as empty then."""
    stage.storage.delete([stage.path.index_key(sealed.index)])
    for k in range(PARTITIONS):
        with pytest.raises(NotFoundError, match=sealed.index):
            read_rows(stage, sealed, k)


def test_reading_a_released_stage_says_released(
    stage: StageHandle, sealed: Seal, ids: SeededIds
) -> None:
    """Also for a reader that got the seal before, at whatever point it stands."""
    reading = read_subpartition(stage, sealed, 0, SMALL)
    assert next(reading).num_rows == 1
    release_stage(stage, ids, generation=1, producers=PRODUCERS, cause="it is over")
    with pytest.raises(NotFoundError, match=r"released.*it is over"):
        read_rows(stage, sealed, 0)


Tamper = Callable[[np.ndarray], np.ndarray]


def more_rows(entries: np.ndarray) -> np.ndarray:
    """The last extent claims a row that is not there."""
    entries["rows"][-2] += 1
    return entries


def fewer_rows(entries: np.ndarray) -> np.ndarray:
    """The last extent with rows claims one less."""
    entries["rows"][-2] -= 1
    return entries


def no_bytes(entries: np.ndarray) -> np.ndarray:
    """An extent claims rows without bytes."""
    entries["length"][1] = 0
    return entries


def more_bytes(entries: np.ndarray) -> np.ndarray:
    """The first extent goes on into the frame behind it."""
    entries["length"][0] += 8
    return entries


def gap(entries: np.ndarray) -> np.ndarray:
    """The first extent of producer 0 is left out."""
    return entries[1:]


def no_producer(entries: np.ndarray) -> np.ndarray:
    """Producer 2, which has no rows, is left out: missing is not empty."""
    return entries[:-1]


def other_producer(entries: np.ndarray) -> np.ndarray:
    """An extent is ascribed to another producer."""
    entries["producer"][1] = 1
    return entries


def twice(entries: np.ndarray) -> np.ndarray:
    """An extent stands there twice."""
    return np.concatenate([entries[:1], entries])


def one_place(entries: np.ndarray) -> np.ndarray:
    """Both extents of producer 0 are the same bytes."""
    for name in ("segment", "offset", "length"):
        entries[name][1] = entries[name][0]
    return entries


def swapped(entries: np.ndarray) -> np.ndarray:
    """The two extents of producer 0 change places."""
    return entries[[1, 0, *range(2, len(entries))]]


@pytest.mark.parametrize(
    "tamper",
    [
        more_rows,
        fewer_rows,
        no_bytes,
        more_bytes,
        gap,
        no_producer,
        other_producer,
        twice,
        one_place,
        swapped,
    ],
)
def test_rows_are_reconciled_even_if_all_checksums_are_right(
    stage: StageHandle, sealed: Seal, tamper: Tamper
) -> None:
    """An index that lies with valid checksums is still an error, not other rows."""
    key = stage.path.index_key(sealed.index)
    index = stage.storage.read(key)
    entries = entries_of(index, 0)
    assert entries["producer"].tolist() == [0, 0, 1, 1, 2]
    changed = with_entries(index, key, 0, tamper(entries))
    replace(stage, key, changed)
    longer = dataclasses.replace(sealed, index_bytes=len(changed))
    with pytest.raises(CorruptDataError):
        read_rows(stage, longer, 0)
    with pytest.raises(CorruptDataError):  # in the order in which extents are stored
        list(read_group(stage, longer, 0, PARTITIONS, Settings()))
    assert read_rows(stage, longer, 1) == expected(1)


def test_an_index_slice_beyond_the_index_is_corrupt(stage: StageHandle, sealed: Seal) -> None:
    """What SEAL says about the index's length binds its entries."""
    short = dataclasses.replace(sealed, index_bytes=sealed.index_bytes - 1)
    with pytest.raises(CorruptDataError, match="beyond the index"):
        read_rows(stage, short, PARTITIONS - 1)


def test_a_frame_over_the_readers_limit_is_corrupt(storage: MemoryStorage, ids: SeededIds) -> None:
    """The limit bounds what one flipped length can cost."""
    stage = new_stage(storage, ids, SCHEMA, partitions=1, compression="none")
    batch = pa.record_batch([[1], ["x" * (2 << 20)]], schema=SCHEMA)
    write(stage, 0, [(batch, np.zeros(1, np.uint16))], ids.new_id())
    sealed = seal(stage, 1, ids.new_id())
    assert len(read_rows(stage, sealed, 0, Settings())) == 1
    with pytest.raises(CorruptDataError, match="expected at most 1048576"):
        read_rows(stage, sealed, 0, Settings(max_frame_bytes=1 << 20))


@pytest.mark.parametrize(
    ("sizes", "rows", "joined"),
    [
        ([], 10, []),
        ([3], 10, [3]),
        ([3, 3, 3, 3], 6, [6, 6]),
        ([3, 3, 3], 6, [6, 3]),
        ([20, 1, 1], 10, [20, 2]),
        ([0, 0], 1, [0]),
        ([1, 2, 3], 1, [1, 2, 3]),
    ],
)
def test_small_batches_are_joined_in_order(sizes: list[int], rows: int, joined: list[int]) -> None:
    """Until they hold enough rows; nothing is lost, the rest comes last."""
    numbers = iter(range(100))
    made = [pa.record_batch([pa.array([next(numbers) for _ in range(s)])], ["x"]) for s in sizes]
    made = [b.cast(pa.schema([("x", pa.int64())])) for b in made]
    found = list(join_small(iter(made), rows))
    assert [b.num_rows for b in found] == joined
    assert [x for b in found for x in b.column(0).to_pylist()] == list(range(sum(sizes)))
