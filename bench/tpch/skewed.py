"""TPC-H tables whose foreign keys follow Zipf's law: a few keys have many rows.

Only o_custkey, l_orderkey, l_partkey and l_suppkey are drawn again. Each new key exists in the
table that it refers to, so joins keep their meaning. Dates of an order and of its lines are not
consistent any more, and numbers of lines repeat within an order: no query asks for either.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from durable_shuffle.bench.made_once import made_once
from durable_shuffle.bench.tpch.data import TpchFiles, generate_all
from durable_shuffle.bench.tpch.queries import TPCH_TABLES

_SEED = 1
_DRAWN = ("orders", "lineitem")
"""Tables with drawn keys; the others are as generated."""

Numbers = npt.NDArray[np.int64]


class Zipf:
    """Draws positions from 0 to `size` - 1; the k-th most frequent one in proportion to 1 / k."""

    def __init__(self, size: int, draw: np.random.Generator) -> None:
        self._draw, self._position = draw, draw.permutation(size)
        self._below = np.cumsum(1 / np.arange(1, size + 1))

    def some(self, count: int) -> Numbers:
        """Return so many positions."""
        drawn = self._draw.random(count) * self._below[-1]
        found: Numbers = self._position[np.searchsorted(self._below, drawn)]
        return found


def generate_skewed(cache: Path, scale: float, seed: int = _SEED) -> TpchFiles:
    """As `generate_all`, but with skewed foreign keys; equal seeds give equal rows."""
    plain = generate_all(cache, scale).folder

    def make(fresh: Path) -> None:
        for table in TPCH_TABLES:
            if table not in _DRAWN:
                shutil.copytree(plain / table, fresh / table, copy_function=os.link)
        draw = np.random.default_rng(seed)
        buyers = np.unique(_column(plain / "orders", "o_custkey"))  # a third buys nothing
        orders = _column(plain / "orders", "o_orderkey")
        parts = _column(plain / "partsupp", "ps_partkey")
        suppliers = _column(plain / "partsupp", "ps_suppkey")
        by_part = np.argsort(parts, kind="stable")
        each = len(parts) // len(np.unique(parts))
        buyer, order = Zipf(len(buyers), draw), Zipf(len(orders), draw)
        part = Zipf(len(parts) // each, draw)

        def of_orders(rows: int) -> dict[str, Numbers]:
            return {"o_custkey": buyers[buyer.some(rows)]}

        def of_lines(rows: int) -> dict[str, Numbers]:
            offered = by_part[part.some(rows) * each + draw.integers(0, each, rows)]
            return {
                "l_orderkey": orders[order.some(rows)],
                "l_partkey": parts[offered],
                "l_suppkey": suppliers[offered],
            }

        for table, keys in zip(_DRAWN, (of_orders, of_lines), strict=True):
            (fresh / table).mkdir()
            for file in sorted((plain / table).glob("*.parquet")):
                rows = pq.read_table(file)
                for name, values in keys(rows.num_rows).items():
                    position = rows.schema.get_field_index(name)
                    field = rows.schema.field(position)
                    rows = rows.set_column(position, field, pa.array(values, field.type))
                pq.write_table(rows, fresh / table / file.name)

    return TpchFiles(made_once(cache, f"{plain.name}-zipf-{seed}", make))


def _column(folder: Path, name: str) -> Numbers:
    found: Numbers = pq.read_table(folder, columns=[name])[name].to_numpy()
    return found
