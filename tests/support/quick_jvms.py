"""Options for the JVMs of tests, which live for seconds."""

import sys
from pathlib import Path

from durable_shuffle.bench.cluster.local_cluster import QUICK_JVMS


def quick_jvms() -> str:
    """Return options for JAVA_TOOL_OPTIONS, which reaches executors, too.

    With the archive of classes that `make test` writes, a session starts in half the time; a JVM
    that the archive does not fit ignores it, and must not say so on its stdout.
    """
    archive = Path(sys.prefix) / "spark-classes.jsa"
    shared = f" -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else ""
    return QUICK_JVMS + shared
