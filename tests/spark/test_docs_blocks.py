"""The code in the documentation does what the pages say: each page is run as one program.

Pages that store on S3 do so on the tests' S3 server, in the bucket that they name. Nothing but the
usual variables of the environment says so, as for a reader with credentials of their own.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs
from doc_blocks import PAGES, ROOT, run_page, runnable
from pyspark.sql import SparkSession

from durable_shuffle.shuffle.testing.s3_server import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.s3]

BUCKET = "my-bucket"
SKIPPED = {
    "CONTRIBUTING.md": 2,
    "README.md": 2,
    "docs/internals/decisions/001-slot-log-protocol.md": 1,
    "docs/internals/pipelines.md": 5,
    "docs/internals/storage.md": 2,
    "docs/operations.md": 1,
    "docs/performance.md": 1,
    "docs/pipelines.md": 3,
    "docs/storage.md": 1,
}
"""How many blocks of a page are skipped; each says why in the page's source."""


@pytest.fixture
def bucket(
    s3_server: S3Server, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """An empty bucket, which Python and Spark's workers find by variables alone."""
    variables = {
        "AWS_ACCESS_KEY_ID": s3_server.key,
        "AWS_SECRET_ACCESS_KEY": s3_server.secret,
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(session.sparkContext.environment, name, value)
    files = s3fs.S3FileSystem(**s3_server.options, skip_instance_cache=True)
    files.mkdir(BUCKET)
    yield
    files.rm(BUCKET, recursive=True)


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
def test_page_runs(path: Path, session: SparkSession, request: pytest.FixtureRequest) -> None:
    """All blocks ran and printed what the page says, except for the skipped ones."""
    if f"s3://{BUCKET}/" in path.read_text():
        request.getfixturevalue("bucket")
    page = run_page(path, {"spark": session})
    name = str(path.relative_to(ROOT)).replace(os.sep, "/")
    assert len(page.skipped) == SKIPPED.get(name, 0), page.skipped
    assert page.run + len(page.skipped) == runnable(path)
