"""Wrong calls, wrong roots and damaged data: each error says what to do; no wrong rows."""

import importlib.util
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest
from pyspark.errors import PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)

pytestmark = pytest.mark.spark

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def shuffle(session: SparkSession, root: str) -> DurableShuffle:
    return DurableShuffle(session, root, job="tests")


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (0, "from 1 to 1000000, found 0"),
        (-3, "from 1 to 1000000, found -3"),
        (1_000_001, "from 1 to 1000000, found 1000001"),
        (10**30, "from 1 to 1000000, found 1000"),
        (True, "must be an int, found bool True"),
        (2.0, "must be an int, found float 2.0"),
        (math.nan, "must be an int, found float nan"),
        ([3], "must be an int, found list"),
    ],
)
def test_bad_number_of_partitions(
    session: SparkSession, shuffle: DurableShuffle, n: Any, message: str
) -> None:
    """Only whole numbers from 1 are numbers of partitions; the message shows the given value."""
    df = session.range(3)
    for columns in ((), ("id",)):
        with pytest.raises(InvalidInputError, match=message):
            shuffle.repartition(df, n, *columns)
    assert shuffle.stages() == []


@pytest.mark.parametrize("n", [None, 3])
def test_unknown_column_is_named_beside_those_there_are(
    session: SparkSession, shuffle: DurableShuffle, n: int | None
) -> None:
    """The message holds the requested column and the columns of the frame."""
    df = session.range(3).selectExpr("id as first", "id as second")
    with pytest.raises(InvalidInputError, match="asked for thrid; columns are first, second"):
        shuffle.repartition(df, n, "thrid")


def test_column_of_another_frame_is_refused(session: SparkSession, shuffle: DurableShuffle) -> None:
    """A column of another DataFrame is not a valid key of this one."""
    other = session.range(3).selectExpr("id as elsewhere")
    with pytest.raises(InvalidInputError, match=r"elsewhere.*columns are id"):
        shuffle.repartition(session.range(3), 2, other.elsewhere)


def test_ambiguous_key_is_refused(session: SparkSession, shuffle: DurableShuffle) -> None:
    """A name that two columns share is not a valid key; the other columns are."""
    df = session.range(3).selectExpr("id as a", "id * 2 as a", "id as b")
    with pytest.raises(InvalidInputError, match=r"asked for a; columns are a, a, b.*AMBIGUOUS"):
        shuffle.repartition(df, 2, "a")
    assert shuffle.repartition(df, 2, "b").count() == 3


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("map('a', id)", "column 'k' of type map<string,bigint> cannot be a key"),
        ("array(map('a', id))", "column 'k' of type map<string,bigint> cannot be a key"),
        ("struct(id, map(1, 2) as m)", "column 'k' of type map<int,int> cannot be a key"),
        ("parse_json('1')", "column 'k' of type variant cannot be"),
        ("'x' collate UTF8_LCASE", "column 'k' has collation UTF8_LCASE"),
        ("array('x' collate UNICODE_CI)", "column 'k' has collation UNICODE_CI"),
    ],
)
def test_types_without_a_hash_are_no_keys(
    session: SparkSession, shuffle: DurableShuffle, expression: str, message: str
) -> None:
    """Maps, variants, and strings that are equal without equal bytes are refused, at any depth."""
    df = session.range(3).select(F.expr(expression).alias("k"))
    with pytest.raises(InvalidInputError, match=message):
        shuffle.repartition(df, 2, "k")
    assert shuffle.stages() == []


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("make_ym_interval(1, 2)", "interval year to month"),
        ("array(make_ym_interval(1, 2))", "interval year to month"),
        ("array()", "array<void>"),
        ("map()", "map<void,void>"),
        ("named_struct('a', array())", "array<void>"),
    ],
)
def test_types_that_do_not_travel_are_refused(
    session: SparkSession, root: str, expression: str, kind: str
) -> None:
    """Types that Spark cannot pass to Python are refused there by column name, key or not."""
    shuffle = DurableShuffle(session, root, job="tests", rows_in="python")
    df = session.range(3).select("id", F.expr(expression).alias("odd"))
    for request in ((2, "id"), (2,)):
        with pytest.raises(InvalidInputError, match=f"column 'odd' of type {kind} cannot be"):
            shuffle.repartition(df, *request)


def test_collated_values_are_carried(session: SparkSession, shuffle: DurableShuffle) -> None:
    """A collation forbids a column as key, not as value."""
    df = session.range(3).selectExpr("id", "'x' collate UTF8_LCASE as text")
    out = shuffle.repartition(df, 2, "id")
    assert out.schema == df.schema
    assert out.where("text = 'X'").count() == 3


def test_streaming_frame_is_refused(session: SparkSession, shuffle: DurableShuffle) -> None:
    """A stream has no end at which to commit; the message names the call to use."""
    df = session.readStream.format("rate").load()
    for call in (lambda: shuffle.repartition(df, 2, "value"), lambda: shuffle.durable(df)):
        with pytest.raises(InvalidInputError, match="foreachBatch"):
            call()


def test_what_is_no_frame_is_refused(session: SparkSession, shuffle: DurableShuffle) -> None:
    """An RDD or a name is not mistaken for a DataFrame."""
    for thing in (session.sparkContext.emptyRDD(), "df", None):
        with pytest.raises(InvalidInputError, match=f"found={type(thing).__name__}"):
            shuffle.durable(thing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job": ""}, "job must be"),
        ({"job": "a/b"}, "job must be"),
        ({"job": "../x"}, "job must be"),
        ({"reuse": "maybe"}, "reuse must be one of auto, never, require, found='maybe'"),
        ({"on_conflict": "ask"}, "on_conflict must be one of take_over, fail, found='ask'"),
        ({"retention": "forever"}, "retention must be .*found='forever'"),
        ({"retention": 3600}, "retention must be .*found=3600"),
        ({"url": "nonsense://x/y"}, "nonsense: has no exclusive create"),
        ({"url": "memory://x"}, "memory: .*every Spark worker"),
        ({"storage_options": {"key": "x"}}, "a folder takes no options"),
    ],
)
def test_bad_arguments(
    session: SparkSession, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    """Options are checked before anything is written."""
    root = tmp_path / "never"
    with pytest.raises(InvalidInputError, match=message):
        DurableShuffle(session, **{"url": str(root), "job": "tests", **arguments})
    assert not root.exists()


@pytest.mark.parametrize("name", ["a/b", "", " ", "-a", "ä", "x" * 300])
def test_bad_stage_names(session: SparkSession, shuffle: DurableShuffle, name: str) -> None:
    """A stage's label becomes part of a path, so it is checked; "" is not the default."""
    with pytest.raises(InvalidInputError, match="name must be"):
        shuffle.durable(session.range(1), name=name)


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("gs://bucket/folder", "gcsfs", "gcs"),
        ("abfs://box@account.dfs.core.windows.net/folder", "adlfs", "azure"),
    ],
)
def test_missing_driver_names_what_to_install(
    session: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    module: str,
    extra: str,
) -> None:
    """Without the driver of an object store, the error names the command that installs it."""
    if importlib.util.find_spec(module) is not None:
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(InvalidInputError, match=rf"pip install 'durable-shuffle\[{extra}\]'"):
        DurableShuffle(session, url, job="tests")


def test_default_url_of_local_masters_and_setting(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a url, the setting counts, and after it a folder beside the job."""
    monkeypatch.chdir(tmp_path)
    assert DurableShuffle(session, job="tests").url == f"file:{tmp_path}/durable-shuffle"
    session.conf.set("spark.durableShuffle.url", str(tmp_path / "other"))
    assert DurableShuffle(session, job="tests").url == f"file:{tmp_path}/other"


WRITE_AS_NOBODY = """
import os, sys
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.storage.open import open_storage
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    open_storage(sys.argv[1]).put_if_absent("tests/preflight/1", b"x")
except InvalidInputError as e:
    print(e)
"""


def test_missing_permission_is_told() -> None:
    """A user without write permission learns which root fails and why, before any work."""
    with tempfile.TemporaryDirectory() as outer:
        Path(outer).chmod(0o755)
        locked = Path(outer).resolve() / "locked"
        locked.mkdir(mode=0o555)
        done = subprocess.run(
            [sys.executable, "-c", WRITE_AS_NOBODY, str(locked)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            check=True,
        )
        assert f"file:{locked}: cannot create tests/preflight/1" in done.stdout
        assert "Permission denied" in done.stdout
        assert list(locked.iterdir()) == []


def test_root_that_is_a_file_is_refused(session: SparkSession, tmp_path: Path) -> None:
    """If a file is in the place of the folder, the error names it."""
    root = tmp_path / "file"
    root.write_text("x")
    with pytest.raises(InvalidInputError, match=f"{root} is a file"):
        DurableShuffle(session, str(root), job="tests")
    assert root.read_text() == "x"


def test_root_of_another_job_is_refused(
    session: SparkSession, shuffle: DurableShuffle, root: str
) -> None:
    """A job's folder that was copied to another name is not mistaken for that job."""
    shuffle.durable(session.range(3))
    shutil.copytree(Path(root, "tests"), Path(root, "copy"))
    with pytest.raises(CorruptDataError, match=r"copy/log/0+: .*the record of another place"):
        DurableShuffle(session, root, job="copy")


def control_record(version: int, key: str, kind: str, fields: dict[str, Any]) -> bytes:
    """A control record bound to its key, built from the format's description, of any version."""
    payload = msgpack.packb({"fields": fields, "kind": kind})
    checked = struct.pack("<4sHHI", b"\x89DSC", version, 0, len(payload))
    crc = zlib.crc32(payload, zlib.crc32(checked)) ^ zlib.crc32(key.encode())
    return checked + struct.pack("<I", crc) + payload


def test_commit_of_a_newer_version_is_not_guessed_at(
    session: SparkSession, root: str, breaker: Any, committed_producers: Callable[[str], set[int]]
) -> None:
    """A producer's record of a newer version stops the run; the error names both versions."""
    df = session.range(0, 8, 1, 2).mapInArrow(breaker.function(1, after=1), "id long")
    with pytest.raises(Exception, match="broken on purpose"):
        DurableShuffle(session, root, job="tests").repartition(df, 2, "id")
    assert committed_producers(root) == {0}
    breaker.mend()
    (folder,) = Path(root, "tests").glob("repartition-*/producers")
    newer = folder / "p000001" / "0000000000"
    newer.parent.mkdir(exist_ok=True)
    key = newer.relative_to(root).as_posix()
    newer.write_bytes(control_record(3, key, "COMMIT", {"record_id": "0" * 32}))
    shuffle = DurableShuffle(session, root, job="tests")
    with pytest.raises(IncompatibleError, match=r"p000001/0000000000.*expected 2.*found 3"):
        shuffle.repartition(df, 2, "id")
    newer.write_bytes(control_record(2, key, "PROMISE", {"record_id": "0" * 32}))
    with pytest.raises(IncompatibleError, match="PROMISE"):
        shuffle.repartition(df, 2, "id")


def flip(position: float) -> Callable[[Path], None]:
    """Change one bit, at a position given as a fraction of the length."""

    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[min(len(data) - 1, int(len(data) * position))] ^= 0x10
        path.write_bytes(data)

    return damage


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 8)


def swap(path: Path) -> None:
    """Replace the file with another producer's intact segment."""
    (other,) = (p for p in path.parents[1].rglob("*.seg") if p != path)
    path.write_bytes(other.read_bytes())


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "first byte": ("CorruptDataError", flip(0.0)),
    "a quarter": ("CorruptDataError", flip(0.25)),
    "middle": ("CorruptDataError", flip(0.5)),
    "last byte": ("CorruptDataError", flip(1.0)),
    "cut off": ("CorruptDataError", truncate),
    "emptied": ("CorruptDataError", lambda path: path.write_bytes(b"") and None),
    "another segment": ("CorruptDataError", swap),
    "gone": ("NotFoundError", Path.unlink),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_segment_never_gives_rows(
    session: SparkSession, shuffle: DurableShuffle, root: str, damage: str
) -> None:
    """The read fails, and its message holds our error and the segment's key."""
    kind, do = DAMAGE[damage]
    df = session.range(0, 2000, 1, 2).selectExpr("id % 7 as k", "id as v")
    out = shuffle.repartition(df, 1, "k")
    assert out.count() == 2000
    victim = next(Path(root).rglob("p000001-*.seg"))
    do(victim)
    with pytest.raises(PythonException) as caught:
        out.select("v").collect()
    assert kind in str(caught.value)
    assert str(victim.relative_to(root)) in str(caught.value)


def test_damaged_index_never_gives_rows(
    session: SparkSession, shuffle: DurableShuffle, root: str
) -> None:
    """The index that the seal names is checked like a segment."""
    out = shuffle.repartition(session.range(0, 20, 1, 2), 2, "id")
    (index,) = Path(root).glob("tests/*/index/*")
    flip(1.0)(index)
    with pytest.raises(PythonException, match=f"CorruptDataError(.|\n)*{index.name}"):
        out.collect()


def test_retention_by_age(session: SparkSession, root: str) -> None:
    """When the job is next claimed, stages above the age are deleted, and nothing else."""
    with DurableShuffle(session, root, job="tests") as first:
        first.durable(session.range(3))
    for age, left in ((timedelta(days=1), 1), (timedelta(0), 0)):
        with DurableShuffle(session, root, job="tests", retention=age) as shuffle:
            assert len(shuffle.stages()) == left


def test_computed_key_of_a_frame_without_rows(
    session: SparkSession, shuffle: DurableShuffle
) -> None:
    """A key expression that would fail on a row causes no error if there are no rows."""
    df: DataFrame = session.range(3).where("false")
    key: Column = F.raise_error(F.lit("never evaluated")).cast("int")
    assert shuffle.repartition(df, 2, key).collect() == []
