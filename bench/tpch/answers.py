"""DuckDB answers the 22 queries from the same files; rows are compared one by one."""

import math
from collections.abc import Iterable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

from durable_shuffle.bench.tpch.data import TpchFiles
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES, TPCH_TABLES
from durable_shuffle.serialization.errors import InvalidInputError

_RELATIVE, _ABSOLUTE = 1e-9, 2e-6
"""Spark rounds quotients of decimals to six digits, DuckDB computes them as doubles."""

Rows = list[tuple[Any, ...]]


class Answers:
    """The right answers, each computed once."""

    def __init__(self, data: TpchFiles) -> None:
        try:
            import duckdb  # part of the extra "demo" only
        except ImportError as e:
            raise InvalidInputError(
                "duckdb is not installed: pip install 'durable-shuffle[demo]' brings it"
            ) from e
        self._connection = duckdb.connect()
        for table in TPCH_TABLES:
            files = data.folder / table / "*.parquet"
            self._connection.execute(f"CREATE VIEW {table} AS FROM read_parquet('{files}')")
        self._known: dict[str, Rows] = {}

    def of(self, query: str) -> Rows:
        """Return the rows of a query, by its name."""
        if query not in self._known:
            self._known[query] = self._connection.execute(TPCH_QUERIES[query]).fetchall()
        return self._known[query]

    def differing(self, query: str, rows: Iterable[Sequence[Any]]) -> int:
        """Return how many rows differ from the right ones, in any order; missing ones count."""
        return differing_rows(self.of(query), rows)


def differing_rows(expected: Iterable[Sequence[Any]], found: Iterable[Sequence[Any]]) -> int:
    """Return how many rows differ, in any order; missing ones count. Numbers may be rounded."""
    right, ours = sorted(map(tuple, expected), key=_key), sorted(map(tuple, found), key=_key)
    wrong = sum(not _same(a, b) for a, b in zip(right, ours, strict=False))
    return wrong + abs(len(right) - len(ours))


def _key(row: Sequence[Any]) -> tuple[str, ...]:
    """What is exact in a row; the same on both sides."""
    return tuple(str(value) if isinstance(value, str | int | date) else "" for value in row)


def _same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))


def _equal(a: object, b: object) -> bool:
    if isinstance(a, int | float | Decimal) and isinstance(b, int | float | Decimal):
        return math.isclose(float(a), float(b), rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    return a == b
