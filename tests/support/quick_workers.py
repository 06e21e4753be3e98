"""Python workers of tests, of which each driver starts a few."""

import os
import sysconfig
from pathlib import Path

_MODULE = "spark_daemon_of_tests"
_TEXT = '''"""Spark's daemon of Python workers, with what each worker would import for itself."""

import gc
import sys

if sys.argv[1:2] == ["pyspark.worker"]:
    import numpy, pandas, pyarrow, pyarrow.compute  # noqa: E401, F401
from pyspark.daemon import manager

if __name__ == "__main__":
    gc.freeze()
    manager()
'''


def quick_workers() -> str:
    """Return PYSPARK_SUBMIT_ARGS with which workers start in a fifth of the time.

    A worker is a fork of Spark's daemon, and spends a third of a second on importing pandas and
    pyarrow unless the daemon has done so. After each task it collects garbage, which takes 40 ms
    unless the objects of these packages are left out. The module is written beside the installed
    packages, because each process of this environment finds it there, whatever its PYTHONPATH.
    """
    path = Path(sysconfig.get_path("purelib")) / f"{_MODULE}.py"
    if not path.exists() or path.read_text() != _TEXT:
        whole = path.with_name(f".{_MODULE}.{os.getpid()}")  # other processes import it meanwhile
        whole.write_text(_TEXT)
        whole.replace(path)
    return f"--conf spark.python.daemon.module={_MODULE} pyspark-shell"
