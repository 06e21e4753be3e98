"""TPC-H tables for the demo: made once by `tpchgen-cli`, then taken from a folder.

Strategy: each table is cut into files, and a session that counts a file as one split (see
local_cluster) gives one map task per file, on any number of cores.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from durable_shuffle.bench.made_once import check_scale, generator, made_once
from durable_shuffle.bench.tpch.queries import TPCH_TABLES
from durable_shuffle.serialization.errors import UnavailableError

PARTS = 8
"""Files, and so map tasks, per table."""

_TABLES = ("orders", "lineitem")
_ONE_FILE = ("nation", "region")
"""Tables of a few rows, which the generator does not divide."""


@dataclass(frozen=True, slots=True)
class TpchFiles:
    """A generated data set."""

    folder: Path

    @property
    def orders(self) -> str:
        """Folder of the Parquet files of ORDERS."""
        return str(self.folder / "orders")

    @property
    def lineitem(self) -> str:
        """Folder of the Parquet files of LINEITEM."""
        return str(self.folder / "lineitem")


def default_cache() -> Path:
    """Where generated tables stay between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "durable-shuffle"


def generate(cache: Path, scale: float) -> TpchFiles:
    """Return the data set of this scale below `cache`, making it if it is not there.

    Args:
        scale: TPC-H scale factor; 1 is 6 million rows of LINEITEM.

    Raises:
        InvalidInputError: a scale out of range, or `tpchgen-cli` is not installed.
        UnavailableError: the generator failed; the message holds its words.
    """
    return TpchFiles(_made(cache, scale, f"tpch-{scale:g}-{PARTS}-parts", _TABLES))


def generate_all(cache: Path, scale: float) -> TpchFiles:
    """As `generate`, with all eight tables, each in a folder of its name."""
    return TpchFiles(_made(cache, scale, f"tpch-all-{scale:g}-{PARTS}-parts", TPCH_TABLES))


def _made(cache: Path, scale: float, name: str, tables: Sequence[str]) -> Path:
    check_scale(scale)

    def make(fresh: Path) -> None:
        command = [
            generator("tpchgen-cli", "demo"), "parquet", "--quiet", f"--scale-factor={scale}",
            f"--parts={PARTS}", f"--tables={','.join(tables)}", f"--output-dir={fresh}",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = {t: len(list((fresh / t).glob("*.parquet"))) for t in tables}
        expected = {t: 1 if t in _ONE_FILE else PARTS for t in tables}
        if done.returncode or found != expected:
            raise UnavailableError(
                f"tpchgen-cli failed: status={done.returncode} files={found} expected={expected}; "
                f"it said: {done.stderr.strip() or 'nothing'}"
            )

    return made_once(cache, name, make)
