"""DuckDB answers the demo's question from the same files; every row is compared."""

from dataclasses import dataclass
from pathlib import Path

from durable_shuffle.bench.tpch.data import TpchFiles
from durable_shuffle.bench.tpch.job import ORACLE_SQL
from durable_shuffle.serialization.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two bags of rows."""

    expected: int
    found: int
    differing: int
    """Rows that only one side has, each as often as it is too many."""


class Oracle:
    """The right answer, computed once."""

    def __init__(self, data: TpchFiles) -> None:
        try:
            import duckdb  # part of the extra "demo" only
        except ImportError as e:
            raise InvalidInputError(
                "duckdb is not installed: pip install 'durable-shuffle[demo]' brings it"
            ) from e
        self._connection = duckdb.connect()
        sql = ORACLE_SQL.format(orders=data.orders, lineitem=data.lineitem)
        self._connection.execute(f"CREATE TABLE expected AS {sql}")

    def compare(self, rows: Path) -> Comparison:
        """Compare the rows of a Parquet file, in any order."""
        found = f"(SELECT * FROM read_parquet('{rows}'))"
        return Comparison(
            self._count("expected"),
            self._count(found),
            self._count(f"(FROM expected EXCEPT ALL {found})")
            + self._count(f"({found} EXCEPT ALL FROM expected)"),
        )

    def _count(self, relation: str) -> int:
        row = self._connection.execute(f"SELECT count(*) FROM {relation}").fetchone()
        assert row is not None  # an aggregate always gives one row
        return int(row[0])
