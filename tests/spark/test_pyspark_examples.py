"""PySpark's own documentation examples print the same inside `transparent()` as in plain Spark."""

import doctest
import importlib
import io
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore"),  # examples show deprecated calls, too
]

EVERYDAY = ("group", "window", "readwriter", "merge")
LONG = ("dataframe", "column", "functions.builtin", "catalog", "tvf")
"""Modules below `pyspark.sql`; the long ones run in `make soak`."""
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def _failures(
    session: SparkSession, module: str, inside: AbstractContextManager[None]
) -> dict[str, str]:
    """Return name -> what was printed, for each example that printed something else."""
    loaded = importlib.import_module(f"pyspark.sql.{module}")
    session.catalog.clearCache()
    for (left,) in session.sql("SHOW USER FUNCTIONS").collect():  # by the run before this one
        session.sql(f"DROP FUNCTION IF EXISTS {left}")
    failed: dict[str, str] = {}
    with inside:
        for test in doctest.DocTestFinder().find(loaded, globs=None):
            if not test.examples:
                continue
            names = {"spark": session, "sc": session.sparkContext, "F": F}
            test.globs = {**vars(loaded), **names}
            text = io.StringIO()
            runner = doctest.DocTestRunner(optionflags=_FLAGS, verbose=False)
            if runner.run(test, out=text.write).failed:
                failed[test.name] = text.getvalue()
    return failed


def _compare(session: SparkSession, root: str, module: str) -> None:
    session.conf.set("spark.sql.shuffle.partitions", "4")
    plain = _failures(session.newSession(), module, nullcontext())
    durable = DurableShuffle(session, root, job="tests")
    ours = _failures(session, module, durable.transparent())
    other = {name: text for name, text in ours.items() if name not in plain}
    assert not other, "\n".join(other.values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("module", EVERYDAY)
def test_examples(
    session: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """Each example of a module; those that fail in plain Spark here prove nothing."""
    monkeypatch.chdir(tmp_path)
    _compare(session, root, module)


@pytest.mark.soak
@pytest.mark.parametrize("module", LONG)
def test_more_examples(
    session: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """The modules with many examples."""
    monkeypatch.chdir(tmp_path)
    _compare(session, root, module)
