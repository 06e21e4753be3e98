"""docs/internals/actions.md names every action of the installed PySpark, and says it right."""

import re
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.readwriter import DataFrameWriter, DataFrameWriterV2

from durable_shuffle.jobs.transparent import actions

PAGE = Path(__file__).resolve().parents[3] / "docs" / "internals" / "actions.md"
CLASSES = {kind.__name__: kind for kind in (DataFrame, DataFrameWriter, DataFrameWriterV2)}


def rows() -> list[tuple[str, str, set[str]]]:
    """(what happens, class, names) of each row of the table."""
    found = re.findall(
        r"^\| ([^|]+) \| (DataFrame\w*) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE
    )
    return [(what, kind, set(re.findall(r"`(\w+)`", names))) for what, kind, names in found]


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_name_stands_in_one_row(name: str) -> None:
    """What a newer PySpark adds is missing here; what an older one lacks may stay."""
    listed = [names for _, kind, names in rows() if kind == name]
    public = {n for n in dir(CLASSES[name]) if not n.startswith("_")}
    assert public <= set().union(*listed)
    assert sum(map(len, listed)) == len(set().union(*listed)), "a name stands in two rows"


def test_what_is_durable_is_what_is_replaced() -> None:
    """PySpark's first, head and take call collect."""
    durable = {kind: names for what, kind, names in rows() if what == "durable"}
    replaced = {*actions.ACTIONS, *actions.CHECKPOINTS, "count", "write", "writeTo"}
    assert durable["DataFrame"] == replaced | {"first", "head", "take"}
    assert durable["DataFrameWriter"] | durable["DataFrameWriterV2"] == actions._WRITES
