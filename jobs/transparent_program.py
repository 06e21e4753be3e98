"""Runs a user's program with its actions in a `transparent()` block: `durable-shuffle run`.

Called as a file: `transparent_program.py OPTIONS PROGRAM ARGUMENTS...`. OPTIONS is JSON; PROGRAM is
a Python program or a file of SQL statements. The block opens with the program's first session, and
again with the first session of another SparkContext.
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
            if program.endswith(".sql"):
                _run_statements(builder, Path(program).read_text())
            else:
                runpy.run_path(program, run_name="__main__")
    finally:
        builder.getOrCreate = original


def _run_statements(builder: Any, text: str) -> None:
    """Run SQL statements one after the other; print rows as spark-sql does."""
    spark = builder().getOrCreate()
    for statement in statements_in(spark, text):
        for row in spark.sql(statement).collect():
            cells = ("NULL" if cell is None else str(cell) for cell in row)
            sys.stdout.write("\t".join(cells) + "\n")


def statements_in(spark: Any, text: str) -> list[str]:
    """Return the statements of an SQL script, which Spark itself divides.

    Raises:
        IncompatibleError: this Spark has no way to divide scripts that is known here.
    """
    from durable_shuffle.serialization.errors import IncompatibleError

    texts = spark._jvm.org.apache.spark.sql.catalyst.util.StringUtils  # noqa: SLF001
    known = {str(name) for name in dir(texts)}
    for name in ("splitSemiColon", "splitSemiColonWithIndex"):
        if name in known:
            found = getattr(texts, name)(text, True)  # noqa: FBT003 - with BEGIN ... END
            parts = [str(found.apply(i)) for i in range(int(found.size()))]
            return [part for part in parts if part.strip()]
    raise IncompatibleError(
        f"Spark {spark.version} has no function that divides SQL scripts which durable-shuffle "
        "knows: run the statements from Python, by spark.sql()"
    )


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
