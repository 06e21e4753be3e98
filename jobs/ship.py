"""How this package reaches executors: as a zip made from the running code, added to the session.

A wheel is refused by `addPyFile`; a zip with the same content works. The zip is made once per
driver process and content, in a temporary folder.
"""

import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

from durable_shuffle.jobs.running_code import (
    archive_name,
    code_in,
    code_of,
    package_sources,
    running_code,
)

_EPOCH = (1980, 1, 1, 0, 0, 0)


def make_archive(folder: Path) -> Path:
    """Write the package as a zip whose name holds a digest of its content, unless it is there."""
    sources = package_sources()
    path = folder / archive_name(code_of(sources))
    if not path.exists():
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in sources.items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    return path


def ship(spark: SparkSession) -> None:
    """Make this package importable in the session's Python workers; safe to repeat.

    On classic Spark the first call of an application decides: workers that came later would else
    see another version of the code than those that are running. A driver whose code has changed
    since meets IncompatibleError in its first task.
    """
    running_code()  # stated now: files may change while the loaded code stays
    if not is_connect(spark) and any(code_in(f) for f in spark.sparkContext.listFiles):
        return
    archive = make_archive(Path(tempfile.mkdtemp(prefix="durable-shuffle-")))
    if is_connect(spark):
        spark.addArtifacts(str(archive), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(archive))


def is_connect(spark: SparkSession) -> bool:
    """Return True for a Spark Connect session, which has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
