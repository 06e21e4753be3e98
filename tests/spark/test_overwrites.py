"""A write over what its query reads never ends with an empty table or other rows.

Either Spark refuses it before anything is deleted, or the rows are there. Where plain Spark may
delete the files before it reads them, the oracle is plain Spark that reads a copy of the table.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import table_session
from overwrites import DELETES_FIRST, OF_FILES, READS, outcomes
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from durable_shuffle.jobs.cli.app import app

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]
DYNAMIC = ("all", "with", "insertInto", "saveAsTable", "save")
FORMATS = ("parquet", "orc", "json", "csv")


@pytest.fixture
def database(session: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A database for the tables."""
    folder = tmp_path / "own"
    session.sql(f"CREATE DATABASE own LOCATION '{folder}'")
    yield folder
    session.sql("DROP DATABASE own CASCADE")


def check(session: SparkSession, root: str, folder: Path, format_: str, *case: str) -> None:
    """Compare plain Spark, a first run and a second one."""

    way, read, mode = case

    def to(run: str) -> dict[str, str]:
        names = {"table": f"own.{run}", "path": str(folder / run), "format": format_}
        copied = run == "plain" and way in DELETES_FIRST
        copy = {"read": "own.copy", "read_path": str(folder / "copy")}
        return names | (copy if copied else {})

    found = outcomes(session, root, to, (way, read, mode))
    assert found[0][1], found
    assert found == [found[0]] * 3, found


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("way", "mode"), [(way, "static") for way in OF_FILES] + [(way, "dynamic") for way in DYNAMIC]
)
def test_parquet(session: SparkSession, root: str, database: Path, way: str, mode: str) -> None:
    """Every way to write, over rows that are grouped."""
    check(session, root, database, "parquet", way, "grouped", mode)


@pytest.mark.soak
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("mode", ["static", "dynamic"])
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("way", OF_FILES)
def test_all(
    session: SparkSession, root: str, database: Path, format_: str, mode: str, read: str, way: str
) -> None:
    """Every way, format and kind of query."""
    check(session, root, database, format_, way, read, mode)


@pytest.mark.soak
@pytest.mark.parametrize("way", [pytest.param("save", marks=pytest.mark.soak), "directory"])
def test_a_driver_that_dies_inside_the_write(programs: Any, tmp_path: Path, way: str) -> None:
    """The next run does not take what is left for the whole; the rows are stored."""
    first = programs.start("own_folder_driver", tmp_path, way)
    assert programs.answer(first) == {"writing": True}
    programs.kill(first)
    assert (tmp_path / "data" / "_temporary").exists(), "the write was not cut off"

    second = programs.start("own_folder_driver", tmp_path, way)
    assert programs.answer(second) == {"writing": True}
    said = programs.answer(second)["error"]
    assert "_temporary" in said
    assert "durable-shuffle ls" in said
    words = ["cat", str(tmp_path / "root"), "own", "checkpoint", "--format", "jsonl"]
    rows = CliRunner().invoke(app, words).stdout.splitlines()
    assert sorted(json.loads(row)["id"] for row in rows) == list(range(3000))


@pytest.mark.soak
@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_tables(programs: Any, tmp_path: Path, format_: str) -> None:
    """Every way that these formats have, with both modes."""
    _, jars, environment = table_session.found()
    found = programs.run("overwrites_driver", tmp_path, jars, format_, env=environment)
    assert len(found["cases"]) >= 36
    assert {case: said for case, said in found["cases"].items() if said} == {}
