"""Generated tables and DuckDB's answer, against plain Python over the same files."""

from collections import defaultdict
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from durable_shuffle.bench.tpch.data import TpchFiles, generate
from durable_shuffle.bench.tpch.oracle import Comparison, Oracle
from durable_shuffle.serialization.errors import InvalidInputError

SCHEMA = pa.schema(
    [
        ("o_orderkey", pa.int64()),
        ("o_orderdate", pa.date32()),
        ("o_orderpriority", pa.string()),
        ("revenue", pa.decimal128(38, 4)),
        ("lines", pa.int64()),
        ("last_shipped", pa.date32()),
        ("first_mode", pa.string()),
    ]
)
Rows = list[tuple[object, ...]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TpchFiles:
    """1,500 orders."""
    return generate(tmp_path_factory.mktemp("tpch"), 0.001)


def _answer(data: TpchFiles) -> Rows:
    lines = defaultdict(list)
    for row in pq.read_table(data.lineitem).to_pylist():
        lines[row["l_orderkey"]].append(row)
    return [
        (
            order["o_orderkey"],
            order["o_orderdate"],
            order["o_orderpriority"],
            sum(
                (r["l_extendedprice"] * (1 - r["l_discount"]) for r in lines[order["o_orderkey"]]),
                Decimal(0),
            ),
            len(lines[order["o_orderkey"]]),
            max(r["l_shipdate"] for r in lines[order["o_orderkey"]]),
            min(r["l_shipmode"] for r in lines[order["o_orderkey"]]),
        )
        for order in pq.read_table(data.orders).to_pylist()
    ]


def _write(rows: Rows, path: Path) -> Path:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    pq.write_table(pa.Table.from_arrays(arrays, schema=SCHEMA), path)
    return path


def test_oracle_accepts_the_answer_in_any_order_and_refuses_every_change(
    data: TpchFiles, tmp_path: Path
) -> None:
    """A missing row, a row too many and a value off by 0.0001 are each seen."""
    rows, oracle = _answer(data), Oracle(data)
    file = tmp_path / "rows.parquet"
    assert oracle.compare(_write(rows[::-1], file)) == Comparison(1500, 1500, 0)
    assert oracle.compare(_write(rows[1:], file)) == Comparison(1500, 1499, 1)
    assert oracle.compare(_write([*rows, rows[0]], file)) == Comparison(1500, 1501, 1)
    key, date, priority, revenue, *rest = rows[0]
    assert isinstance(revenue, Decimal)
    changed = (key, date, priority, revenue + Decimal("0.0001"), *rest)
    assert oracle.compare(_write([changed, *rows[1:]], file)) == Comparison(1500, 1500, 2)


def test_generate_makes_eight_files_per_table_once(data: TpchFiles) -> None:
    """A second call finds the finished folder and leaves its files and nothing else there."""
    files = sorted(data.folder.rglob("*.parquet"))
    assert len(files) == 16
    before = [f.stat().st_mtime_ns for f in files]
    assert generate(data.folder.parent, 0.001) == data
    assert [f.stat().st_mtime_ns for f in files] == before
    assert list(data.folder.parent.iterdir()) == [data.folder]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), 101.0])
def test_scale_out_of_range_is_refused_before_anything_is_made(
    tmp_path: Path, scale: float
) -> None:
    """A scale that makes no sense leaves no folder behind."""
    with pytest.raises(InvalidInputError, match="scale must be"):
        generate(tmp_path / "cache", scale)
    assert not (tmp_path / "cache").exists()
