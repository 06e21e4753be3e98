"""Runs a user's program with its actions in a `transparent()` block: `durable-shuffle run`.

Called as a file: `transparent_program.py OPTIONS PROGRAM.py ARGUMENTS...`. OPTIONS is JSON. The
block opens with the program's first session, and again with the first session of another
SparkContext.
"""

import json
import os
import runpy
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any


def main(given: str, program: str) -> None:
    """Run the program as `python program` would; `sys.argv` is its own already."""
    from pyspark.sql import SparkSession

    from durable_shuffle.jobs.outcome import tell_end

    tell_end()
    options = json.loads(given)
    name = options.pop("storage_options_env", None)
    storage_options = json.loads(os.environ[name]) if name else None
    opened = _Opened({**options, "storage_options": storage_options})
    builder: Any = SparkSession.Builder
    original = builder.getOrCreate

    def get_or_create(self: Any) -> Any:
        return opened.session(original(self))

    builder.getOrCreate = get_or_create
    try:
        with opened.blocks:
            runpy.run_path(program, run_name="__main__")
    finally:
        builder.getOrCreate = original


class _Opened:
    """The block of the program's newest SparkContext."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments
        self._context: Any = None
        self._busy = False
        self.blocks = ExitStack()

    def session(self, spark: Any) -> Any:
        """Open a block if the SparkContext of `spark` has none."""
        from durable_shuffle.jobs.session import DurableShuffle

        if not self._busy and self._context is not spark.sparkContext:
            self._busy = True  # what follows may ask for the session, too
            try:
                self.blocks.close()
                shuffle = self.blocks.enter_context(DurableShuffle(spark, **self._arguments))
                self.blocks.enter_context(shuffle.transparent())
                self._context = spark.sparkContext
            finally:
                self._busy = False
        return spark


if __name__ == "__main__":
    given, program = sys.argv[1:3]
    sys.argv[:] = sys.argv[2:]
    sys.path[0] = str(Path(program).resolve().parent)  # in place of this file's own folder
    main(given, program)
