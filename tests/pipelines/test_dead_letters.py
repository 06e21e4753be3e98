"""Rows that a step cannot take are passed over, if that is wanted, and none of them is lost."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from one_consumer import OneConsumer
from pipeline_steps import ROWS, Numbers, same
from pipelines import settings, threads

from durable_shuffle.recovery.calls.batches import AsyncStep
from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.serialization.errors import InvalidInputError

UPTO = 400
SUMS = pa.schema([("n", pa.int64()), ("sum", pa.int64())])


class Picky:
    """Adds numbers up; fails at some of them when it has added half of the batch."""

    outage: ClassVar[list[int]] = [150, 151]
    """Of this process: numbers at which the network is away, once each."""

    def __init__(self) -> None:
        self.sum = 0

    def process(self, batch: pa.RecordBatch) -> Any:
        for n in batch.column("n").to_pylist():
            if n in self.outage:
                self.outage.remove(n)
                raise ConnectionError("the network is away")
            self.sum += n
            if n % 37 == 5:
                raise ValueError(f"cannot take {n}")
            yield {"n": n if n % 41 != 7 else "not a number", "sum": self.sum}

    def snapshot(self) -> bytes:
        return str(self.sum).encode()

    def restore(self, state: bytes) -> None:
        self.sum = int(state)


def lines(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("part-*.json"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_bad_rows_go_to_the_dead_letters_once(tmp_path: Path) -> None:
    """Also those that fail by what they return, over restarts; the state has the good ones alone.
    What may pass is tried again and passes nobody over."""
    Picky.outage = [150, 151]
    pipeline = Pipeline("picky", str(tmp_path / "data"), settings=settings(append_rows=50))
    numbers = pipeline.source("numbers", IteratorSource(Numbers(1, UPTO)), schema=ROWS, key="n")
    numbers.consume(
        "sum",
        Picky(),
        schema=SUMS,
        sink=FileSink(str(tmp_path / "out"), "json"),
        on_error="skip",
        dead_letters=FileSink(str(tmp_path / "dead"), "json"),
    )
    result = pipeline.run(launcher=threads)
    assert (result.phase, result.restarts) == (JobPhase.FINISHED, 2)
    good, dead = lines(tmp_path / "out"), lines(tmp_path / "dead")
    bad = {n for n in range(UPTO) if n % 37 == 5 or n % 41 == 7}
    assert Counter(row["n"] for row in dead) == Counter(bad)
    assert {row["n"]: row["_error"] for row in dead}[5] == "ValueError: cannot take 5"
    assert "does not fit the schema" in {row["n"]: row["_error"] for row in dead}[7]
    assert Counter(row["n"] for row in good) == Counter(set(range(UPTO)) - bad)
    assert max(row["sum"] for row in good) == sum(set(range(UPTO)) - bad)
    assert not Picky.outage, "the fault did not happen"


def test_who_cannot_pass_rows_over(one: OneConsumer) -> None:
    """A description that would lose rows is refused."""
    pipeline = Pipeline("p", str(one.folder / "data"))
    numbers = pipeline.source("n", IteratorSource(Numbers(1)), schema=ROWS)
    here = FileSink(str(one.folder / "out"), "json")

    def refused(match: str, step: Any = same, **more: Any) -> None:
        with pytest.raises(InvalidInputError, match=match):
            numbers.consume("c", step, schema=ROWS, sink=here, **more)

    refused("'fail' or 'skip'", on_error="ignore")
    refused("dead_letters", on_error="skip")
    refused("dead_letters", dead_letters=here)
    refused("another folder", on_error="skip", dead_letters=FileSink(str(one.folder / "out")))
    step = AsyncStep(same, ROWS, capacity=1)
    refused("one row at a time", step, on_error="skip", dead_letters=FileSink("elsewhere"))


NUMBERS = pa.schema([("x", pa.float64())])


def wordless(batch: pa.RecordBatch) -> Any:
    """Meet rows whose error cannot be said, whose result JSON cannot hold, or both."""
    for x in batch.column("x").to_pylist():
        if x != x:  # NaN, which the dead letters cannot hold either
            raise Wordless(x)
        if x == 2.0:
            raise ValueError("a name of \udcff")
        yield {"x": float("nan") if x == 4.0 else x}


class Wordless(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.requirement("R-ARR-6")
def test_no_row_is_too_bad_for_the_dead_letters(tmp_path: Path) -> None:
    """Neither its error, nor what is made of it, nor what is in it ends the pipeline."""
    rows = [{"x": float("nan") if n == 6 else float(n)} for n in range(8)]
    pipeline = Pipeline("worst", str(tmp_path / "data"), settings=settings(max_restarts=0))
    source = pipeline.source("rows", IteratorSource(lambda *_: iter([(rows, 1)])), schema=NUMBERS)
    source.consume(
        "pass",
        wordless,
        schema=NUMBERS,
        sink=FileSink(str(tmp_path / "out"), "json"),
        on_error="skip",
        dead_letters=FileSink(str(tmp_path / "dead"), "json"),
    )
    result = pipeline.run(launcher=threads)
    assert (result.phase, result.cause) == (JobPhase.FINISHED, None)
    assert sorted(row["x"] for row in lines(tmp_path / "out")) == [0, 1, 3, 5, 7]
    dead = {row["x"]: row["_error"] for row in lines(tmp_path / "dead")}
    assert dead.keys() == {2.0, 4.0, None}
    assert dead[2.0] == "ValueError: a name of \\udcff"
    assert "JSON cannot hold nan" in dead[4.0]
    assert dead[None].startswith("Wordless: (Wordless without a text")
    assert "left out: column 'x'" in dead[None]
