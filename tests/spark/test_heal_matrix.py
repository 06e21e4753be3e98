"""Every shape of damage under every call, in a folder and on an object store: the run after the one
that met it gives the right rows, and exactly the damaged producers run again."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.repair import heal
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.verify.job import verify_job

pytestmark = [pytest.mark.spark, pytest.mark.soak]

Rows = Counter[tuple[object, ...]]


class Damage:
    """Harms objects of the one stage of a job."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def keys(self, part: str) -> list[str]:
        """Return the objects of the stage whose names begin like this, below its folder."""
        keys = (info.key.split("/", 2) for info in self._storage.list("tests/"))
        return sorted("/".join(key) for key in keys if key[2].startswith(part))

    def segment(self, producer: int) -> str:
        return next(k for k in self.keys("segments/") if f"/p{producer:06d}-" in k)

    def change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        data = self._storage.read(key)
        self._storage.delete([key])
        self._storage.put(key, [change(data)])

    def lose(self, key: str) -> None:
        self._storage.delete([key])

    def copy(self, source: str, key: str) -> None:
        self.change(key, lambda _: self._storage.read(source))


def bit(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def two(damage: Damage) -> None:
    damage.lose(damage.segment(0))
    damage.change(damage.segment(3), bit)


SHAPES: dict[str, tuple[Callable[[Damage], None], frozenset[int]]] = {
    "missing": (lambda d: d.lose(d.segment(2)), frozenset({2})),
    "empty": (lambda d: d.change(d.segment(2), lambda _: b""), frozenset({2})),
    "cut": (lambda d: d.change(d.segment(2), cut), frozenset({2})),
    "zeroed": (
        lambda d: d.change(d.segment(2), lambda data: data[:50] + bytes(len(data) - 50)),
        frozenset({2}),
    ),
    "another's": (lambda d: d.copy(d.segment(1), d.segment(2)), frozenset({2})),
    "one bit": (lambda d: d.change(d.segment(2), bit), frozenset({2})),
    "two producers": (two, frozenset({0, 3})),
    "index missing": (lambda d: d.lose(d.keys("index/")[0]), frozenset()),
    "index cut": (lambda d: d.change(d.keys("index/")[0], cut), frozenset()),
    "a bit of the index": (lambda d: d.change(d.keys("index/")[0], bit), frozenset()),
    "SEAL lost": (lambda d: d.lose(d.keys("log/0000000001")[-1]), frozenset()),
    "COMMIT lost": (lambda d: d.lose(d.keys("producers/p000001/")[0]), frozenset()),
}
"""Name -> what is done, and the producers that must run again."""


def sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from (
        pa.Table.from_batches(list(batches))
        .group_by("k")
        .aggregate([("v", "sum")])
        .rename_columns(["k", "s"])
        .to_batches()
    )


def made_by(call: str, shuffle: DurableShuffle, df: DataFrame, number: int) -> DataFrame:
    """Return the rows of a call; `number` is that of the run."""
    if call == "checkpoint":
        return shuffle.checkpoint(df)
    if call == "repartition":
        return shuffle.repartition(df, 3, "k")
    if call == "query":
        return shuffle.query(df.groupBy("k").agg(F.sum("v").alias("s")))
    if call == "stage":
        schema = "k long, s long"
        return shuffle.stage(df, keys="k", num_partitions=3, reduce=sums, schema=schema)
    stored = shuffle.repartition(df, 3, "k")
    consumer = {"consumer": f"c{number}", "process": lambda batch: batch}
    published = shuffle.consume(stored, schema="k long, v long", **consumer)
    assert published is not None
    return published


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """URL and options of an empty storage."""
    if request.param == "folder":
        return str(tmp_path / "root"), {}
    server = request.getfixturevalue("s3_server")
    return f"s3://{server.bucket}/{tmp_path.name}", server.options


@pytest.mark.parametrize("call", ["checkpoint", "repartition", "query", "stage", "consume"])
@pytest.mark.parametrize("shape", SHAPES)
def test_damage_heals(
    session: SparkSession,
    place: tuple[str, dict[str, Any]],
    counter: Any,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    shape: str,
) -> None:
    """The second run meets the damage; `consume` is right in that run already."""
    monkeypatch.setattr(heal, "_SETTLE_SECONDS", 0.0)
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "3")
    url, options = place
    df = session.range(0, 3000, 1, 4).selectExpr("id % 97 AS k", "id AS v")
    df = df.mapInArrow(counter.function, df.schema)

    def run(number: int) -> Rows:
        shuffle = DurableShuffle(session, url, job="tests", version="1", storage_options=options)
        return Counter(map(tuple, made_by(call, shuffle, df, number).collect()))

    expected = run(1)
    storage = open_storage(url, options)
    harm, again = SHAPES[shape]
    harm(Damage(storage))
    try:
        assert run(2) == expected
    except Exception as error:  # noqa: BLE001 - Spark wraps ours in several of its own
        text = f"{type(error).__name__}: {error}"
        assert "NotFoundError" in text or "CorruptDataError" in text
        assert call != "consume", text
    assert run(3) == expected
    assert counter.runs() == {p: 1 + (p in again) for p in range(4)}
    assert run(4) == expected
    assert counter.runs() == {p: 1 + (p in again) for p in range(4)}
    if shape != "COMMIT lost":
        assert verify_job(storage, "tests", Settings()).ok
