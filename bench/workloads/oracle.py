"""What a workload's answer must be, by DuckDB over the same input, and what a run's rows miss."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq

from durable_shuffle.bench.workloads.workloads import WORKLOADS, all_input
from durable_shuffle.serialization.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run's rows beside the right ones."""

    expected: int
    """Rows of the answer."""
    found: int
    differing: int
    """Rows that only one of the two has."""
    twice: int
    """Input records that count in the answer more often than they should, repeats counted."""
    missing: int
    """Input records that should count and do not."""


class Oracle:
    """Knows the answers of one scale and seed; each is computed once."""

    def __init__(self, scale: float, seed: int) -> None:
        try:
            import duckdb
        except ModuleNotFoundError:
            raise InvalidInputError(
                "duckdb is not installed: pip install 'durable-shuffle[bench]' brings it"
            ) from None
        self._db = duckdb.connect()
        self._db.execute("SET threads = 2").fetchall()
        self._make = cache(lambda name: self._answer(name, scale, seed))

    def compare(self, name: str, result: Path) -> Comparison:
        """Compare the rows in a Parquet file with the answer of a workload."""
        table = self._make(name)
        self._db.register("found", pq.read_table(result))
        columns = ", ".join(part.split()[0] for part in WORKLOADS[name].reduced.split(", "))
        mine, right = f"SELECT {columns} FROM found", f"SELECT {columns} FROM {table}"
        counts = f"""
            SELECT (SELECT count(*) FROM {table}), (SELECT count(*) FROM found),
                   (SELECT count(*) FROM ({mine} EXCEPT ALL {right}))
                   + (SELECT count(*) FROM ({right} EXCEPT ALL {mine})),
                   coalesce(sum(greatest(coalesce(f.n, 0) - coalesce(e.n, 0), 0)), 0),
                   coalesce(sum(greatest(coalesce(e.n, 0) - coalesce(f.n, 0), 0)), 0)
            FROM (SELECT k, sum(rows) AS n FROM found GROUP BY k) f
            FULL JOIN (SELECT k, sum(rows) AS n FROM {table} GROUP BY k) e ON e.k = f.k
        """
        (answer,) = self._db.execute(counts).fetchall()
        self._db.unregister("found")
        return Comparison(*(int(value) for value in answer))

    def _answer(self, name: str, scale: float, seed: int) -> str:
        rows = all_input(WORKLOADS[name], scale, seed)
        self._db.register("input", rows)
        self._db.execute(f"CREATE TABLE answer_{name} AS {WORKLOADS[name].answer}").fetchall()
        self._db.unregister("input")
        return f"answer_{name}"
