"""TPC-DS tables, made once by `tpcgen-cli`; one Parquet file per table."""

import subprocess
from pathlib import Path

from pyspark.sql import SparkSession

from durable_shuffle.bench.made_once import check_scale, generator, made_once
from durable_shuffle.serialization.errors import UnavailableError

_TABLES = 25
_OLD_NAMES = {"c_last_review_date_sk": "c_last_review_date"}
"""The generator follows a newer version of the specification than the queries."""


def generate(cache: Path, scale: float) -> Path:
    """Return the folder of the data set of this scale below `cache`, made if it is not there.

    Args:
        scale: TPC-DS scale factor; 1 is 2.9 million rows of STORE_SALES.

    Raises:
        InvalidInputError: a scale out of range, or `tpcgen-cli` is not installed.
        UnavailableError: the generator failed; the message holds its words.
    """
    check_scale(scale)

    def make(fresh: Path) -> None:
        command = [
            generator("tpcgen-cli", "bench"), "tpcds", "parquet", "--quiet",
            f"--scale-factor={scale}", f"--output-dir={fresh}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = len(list(fresh.glob("*.parquet")))
        if done.returncode or found != _TABLES:
            raise UnavailableError(
                f"tpcgen-cli failed: status={done.returncode} tables={found} expected={_TABLES}; "
                f"it said: {done.stderr.strip() or 'nothing'}"
            )

    return made_once(cache, f"tpcds-{scale:g}", make)


def create_views(session: SparkSession, folder: Path) -> None:
    """Give the session a view of each table's name, with the names of columns that queries use."""
    for file in sorted(folder.glob("*.parquet")):
        table = session.read.parquet(str(file))
        for new, old in _OLD_NAMES.items():
            table = table.withColumnRenamed(new, old)
        table.createOrReplaceTempView(file.stem)
