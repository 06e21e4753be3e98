"""The Python map and reduce that benchmarks store: a filter, and a sum per order."""

from collections.abc import Callable, Iterator

import pyarrow as pa

Batches = Iterator[pa.RecordBatch]
SUMS = "k long, s double"
"""Schema of what the reducer yields."""


def map_and_reduce() -> tuple[Callable[[Batches], Batches], Callable[[Batches], Batches]]:
    """Return both functions. They travel by value, so workers need not import this file."""

    def clean(batches: Batches) -> Batches:
        import pyarrow.compute as pc

        for batch in batches:
            yield batch.filter(pc.greater(batch.column("l_quantity").cast("float64"), 2.0))

    def total(batches: Batches) -> Batches:
        table = pa.Table.from_batches(list(batches)).group_by("l_orderkey")
        for sums in table.aggregate([("l_extendedprice", "sum")]).to_batches():
            price = sums.column("l_extendedprice_sum").cast("float64")
            yield pa.RecordBatch.from_arrays([sums.column("l_orderkey"), price], names=["k", "s"])

    return clean, total
