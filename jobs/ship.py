"""How this package reaches executors: as a zip made from the running code, added to the session.

A wheel is refused by `addPyFile`; a zip with the same content works. The zip is made once per
driver process and content, in a temporary folder.
"""

import hashlib
import re
import tempfile
import zipfile
from pathlib import Path

from pyspark.sql import SparkSession

import durable_shuffle

_FOLDERS = ("serialization", "shuffle", "recovery", "jobs")
_ARCHIVE = re.compile(r"/durable_shuffle-[^/]*\.zip$")
_EPOCH = (1980, 1, 1, 0, 0, 0)


def package_sources() -> dict[str, bytes]:
    """Return archive name -> content of every Python file of the running package."""
    root = Path(durable_shuffle.__file__).parent
    files = {"durable_shuffle/__init__.py": (root / "__init__.py").read_bytes()}
    for folder in _FOLDERS:
        base = root / folder
        for path in sorted(base.rglob("*.py")):
            name = f"durable_shuffle/{folder}/{path.relative_to(base).as_posix()}"
            files[name] = path.read_bytes()
    return files


def make_archive(folder: Path) -> Path:
    """Write the package as a zip whose name holds a digest of its content, unless it is there."""
    sources = package_sources()
    digest = hashlib.sha256()
    for name, data in sources.items():
        digest.update(name.encode() + b"\0" + data)
    path = folder / f"durable_shuffle-{durable_shuffle.__version__}-{digest.hexdigest()[:16]}.zip"
    if not path.exists():
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in sources.items():
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), data)
    return path


def ship(spark: SparkSession) -> None:
    """Make this package importable in the session's Python workers; safe to repeat.

    On classic Spark the first call of an application decides: workers that came later would else
    see another version of the code than those that are running.
    """
    if not is_connect(spark) and any(_ARCHIVE.search(f) for f in spark.sparkContext.listFiles):
        return
    archive = make_archive(Path(tempfile.mkdtemp(prefix="durable-shuffle-")))
    if is_connect(spark):
        spark.addArtifacts(str(archive), pyfile=True)
    else:
        spark.sparkContext.addPyFile(str(archive))


def is_connect(spark: SparkSession) -> bool:
    """Return True for a Spark Connect session, which has no SparkContext."""
    return type(spark).__module__.startswith("pyspark.sql.connect")
