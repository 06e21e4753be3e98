"""Skewed tables: keys exist where they refer to, a few have many rows, all else is unchanged."""

from pathlib import Path

import duckdb
import pytest

from durable_shuffle.bench.tpch.data import generate_all
from durable_shuffle.bench.tpch.queries import TPCH_TABLES
from durable_shuffle.bench.tpch.skewed import generate_skewed

SCALE = 0.01


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tpch")


@pytest.fixture(scope="module")
def tables(cache: Path) -> duckdb.DuckDBPyConnection:
    """The skewed tables, and those as generated with the prefix `plain_`."""
    connection = duckdb.connect()
    for prefix, make in (("", generate_skewed), ("plain_", generate_all)):
        folder = make(cache, SCALE).folder
        for table in TPCH_TABLES:
            files = folder / table / "*.parquet"
            connection.execute(f"CREATE VIEW {prefix}{table} AS FROM read_parquet('{files}')")
    return connection


def number(tables: duckdb.DuckDBPyConnection, text: str) -> float:
    (row,) = tables.execute(text).fetchall()
    return float(row[0])


@pytest.mark.parametrize(
    ("table", "keys", "other", "others"),
    [
        ("orders", "o_custkey", "customer", "c_custkey"),
        ("lineitem", "l_orderkey", "orders", "o_orderkey"),
        ("lineitem", "l_partkey, l_suppkey", "partsupp", "ps_partkey, ps_suppkey"),
    ],
)
def test_keys_are_skewed_and_exist(
    tables: duckdb.DuckDBPyConnection, table: str, keys: str, other: str, others: str
) -> None:
    """A key has at least 2% of the rows, where it had less than 0.1%; none refers to nothing."""
    missing = f"(SELECT {keys} FROM {table} EXCEPT SELECT {others} FROM {other})"
    assert number(tables, f"SELECT count(*) FROM {missing}") == 0
    most = "SELECT max(n) / sum(n) FROM (SELECT count(*) AS n FROM {} GROUP BY {})"
    assert number(tables, most.format(table, keys)) > 0.02
    assert number(tables, most.format(f"plain_{table}", keys)) < 0.01


@pytest.mark.parametrize("table", TPCH_TABLES)
def test_all_else_is_as_generated(tables: duckdb.DuckDBPyConnection, table: str) -> None:
    drawn = "EXCLUDE (l_orderkey, l_partkey, l_suppkey)" if table == "lineitem" else ""
    drawn = "EXCLUDE (o_custkey)" if table == "orders" else drawn
    rows, plain = (f"SELECT * {drawn} FROM {name}" for name in (table, f"plain_{table}"))
    assert number(tables, f"SELECT count(*) FROM ({rows} EXCEPT ALL {plain})") == 0
    assert number(tables, f"SELECT count(*) FROM ({plain} EXCEPT ALL {rows})") == 0
    types = [tables.execute(f"DESCRIBE {name}").fetchall() for name in (table, f"plain_{table}")]
    assert types[0] == types[1]


def test_one_seed_is_one_data_set(tmp_path: Path) -> None:
    """Equal seeds give equal files; another seed draws other keys."""
    first = generate_skewed(tmp_path / "a", SCALE).folder
    second = generate_skewed(tmp_path / "b", SCALE).folder
    other = generate_skewed(tmp_path / "a", SCALE, seed=2).folder
    file = Path("lineitem") / "lineitem.1.parquet"
    assert (first / file).read_bytes() == (second / file).read_bytes()
    assert (first / file).read_bytes() != (other / file).read_bytes()
