"""The code in the documentation does what the pages say: each page is run as one program."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_blocks import PAGES, ROOT, run_page, runnable
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SKIPPED = {
    "CONTRIBUTING.md": 2,
    "README.md": 2,
    "docs/decisions/001-slot-log-protocol.md": 1,
    "docs/index.md": 1,
    "docs/pipelines.md": 5,
    "docs/storage.md": 2,
}
"""How many blocks of a page are skipped; each says why in the page's source."""


@pytest.fixture
def folder(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Make relative paths of a page refer to an empty folder, for Python and for the JVM."""
    monkeypatch.chdir(tmp_path)
    jvm = session.sparkContext._jvm
    assert jvm is not None
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    files = jvm.org.apache.hadoop.fs.FileSystem.get(configuration)
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(jvm.org.apache.hadoop.fs.Path(str(tmp_path)))
    system = jvm.java.lang.System  # streaming queries read this property
    user = system.setProperty("user.dir", str(tmp_path))
    yield
    system.setProperty("user.dir", user)
    files.setWorkingDirectory(before)


@pytest.mark.parametrize(
    "path",
    [path for path in PAGES if runnable(path)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
@pytest.mark.usefixtures("folder")
def test_page_runs(path: Path, session: SparkSession) -> None:
    """All blocks ran and printed what the page says, except for the skipped ones."""
    page = run_page(path, {"spark": session})
    name = str(path.relative_to(ROOT)).replace(os.sep, "/")
    assert len(page.skipped) == SKIPPED.get(name, 0), page.skipped
    assert page.run + len(page.skipped) == runnable(path)
