"""Sorting and grouping against Python's own sort and dictionaries, in memory and from scratch."""

import datetime as dt
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import InvalidInputError, UnavailableError
from durable_shuffle.shuffle.rows import reducers
from durable_shuffle.shuffle.rows.external_sort import FAN_IN, Scratch, slices, sorted_batches
from durable_shuffle.shuffle.rows.reducers import Grouped, run_grouped
from durable_shuffle.shuffle.rows.row_order import SortKey, row_order, sort_keys


def _instant(hours: int) -> dt.datetime:
    return dt.datetime(2000, 1, 1, hours, tzinfo=dt.UTC)


FLOATS = [0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, math.nan]
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), st.integers(-3, 3)),
    "double": (
        pa.float64(),
        st.sampled_from(FLOATS),
    ),
    "float": (pa.float32(), st.sampled_from(FLOATS)),
    "string": (pa.string(), st.sampled_from(["", "a", "é", "漢", "ab", "\x00"])),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "boolean": (pa.bool_(), st.booleans()),
    "decimal": (
        pa.decimal128(20, 2),
        st.integers(-300, 300).map(lambda i: Decimal(i).scaleb(-2)),
    ),
    "date": (pa.date32(), st.dates(dt.date(1999, 1, 1), dt.date(1999, 1, 4))),
    "time": (pa.timestamp("us", "UTC"), st.integers(0, 3).map(_instant)),
    "nothing": (pa.null(), st.none()),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """One to three columns, nulls everywhere, and a column that numbers the rows."""
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    rows = draw(st.integers(0, 40))
    columns = []
    for kind in kinds:
        values = st.lists(st.none() | VALUES[kind][1], min_size=rows, max_size=rows)
        columns.append(pa.array(draw(values), VALUES[kind][0]))
    names = [f"c{i}" for i in range(len(kinds))]
    return pa.table([*columns, pa.array(range(rows), pa.int64())], names=[*names, "row"])


def rank(value: Any) -> tuple[int, Any]:
    """Spark's ascending order: nulls, numbers, NaN."""
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value.encode() if isinstance(value, str) else value)


def same(value: Any) -> Any:
    """A key under which values are equal as Spark groups them."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value


def one_batch(table: pa.Table) -> pa.RecordBatch:
    return pa.concat_batches([*table.to_batches(), pa.RecordBatch.from_pylist([], table.schema)])


def python_sort(rows: list[dict[str, Any]], keys: list[SortKey]) -> list[int]:
    for key in reversed(keys):
        rows = sorted(
            rows, key=lambda r: rank(r[key.column]), reverse=key.direction == "descending"
        )
    return [row["row"] for row in rows]


@given(tables(), st.data())
def test_order_is_pythons_over_sparks_ranks(table: pa.Table, data: st.DataObject) -> None:
    """Any columns in any direction; equal rows keep their order (Python's reverse does too)."""
    names = data.draw(st.permutations(table.column_names[:-1]))
    keys = [
        SortKey(n, data.draw(st.sampled_from(["ascending", "descending"])))  # type: ignore[arg-type]
        for n in names
    ]
    found = row_order(one_batch(table), keys).tolist()
    assert found == python_sort(table.to_pylist(), keys)


def groups_of(batch: pa.RecordBatch, names: list[str], cut: int) -> list[tuple[Any, list[int]]]:
    """(key, numbers of the rows) of each group, in the order in which they come."""
    found: list[tuple[Any, list[int]]] = []

    def taken(key: tuple[pa.Scalar, ...], group: pa.Table) -> pa.Table:
        found.append((tuple(s.as_py() for s in key), group.column("row").to_pylist()))
        return group.slice(0, 0)

    made = run_grouped(
        Grouped(taken),
        slices(batch, cut),
        by=tuple(names),
        sort_by=(),
        schema=batch.schema,
        memory_bytes=100 * cut,
        batch_rows=cut,
        scratch=Scratch(None),
    )
    assert all(part.num_rows == 0 for part in made)
    return found


@given(tables(), st.integers(1, 9))
def test_groups_are_those_of_a_dictionary(table: pa.Table, cut: int) -> None:
    """Over any batches, from memory and scratch: each key once, with its rows in their order."""
    names = table.column_names[:-1]
    expected = defaultdict(list)
    for row in table.to_pylist():
        expected[tuple(same(row[n]) for n in names)].append(row["row"])
    found = groups_of(one_batch(table), names, cut)
    assert len(found) == len(expected)
    assert {tuple(map(same, key)): rows for key, rows in found} == expected


def test_struct_keys_group_by_their_fields() -> None:
    """A null struct is another key than a struct of nulls; lists are refused by name."""
    values = [{"a": 1, "b": None}, None, {"a": None, "b": None}, {"a": 1, "b": None}, None]
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    batch = pa.record_batch([pa.array(values, kind), list(range(5))], names=["k", "row"])
    for cut in (1, 2, 5):
        found = {repr(key): rows for key, rows in groups_of(batch, ["k"], cut)}
        assert found == {
            repr((values[0],)): [0, 3],
            repr((None,)): [1, 4],
            repr((values[2],)): [2],
        }
    lists = pa.schema([("k", pa.struct([("a", pa.list_(pa.int64()))]))])
    with pytest.raises(InvalidInputError, match=r"'k.a' of type list<item: int64>"):
        groups_of(pa.RecordBatch.from_pylist([], lists), ["k"], 1)


def test_work_per_row_does_not_grow_with_distinct_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row has a key of its own: each is put in order once in memory, and a few times where
    rows go to scratch, however many keys there are."""

    def ordered(rows: int, memory: int) -> int:
        counted = 0

        def counting(batch: pa.RecordBatch, keys: Any) -> Any:
            nonlocal counted
            counted += batch.num_rows
            return row_order(batch, keys)

        monkeypatch.setattr(reducers, "row_order", counting)
        batch = numbered(random.Random(1), rows, 10**12)
        made = run_grouped(
            Grouped(lambda group: group),
            slices(batch, 256),
            by=("k",),
            sort_by=(),
            schema=batch.schema,
            memory_bytes=memory,
            batch_rows=256,
            scratch=Scratch(None),
        )
        assert sum(1 for _ in made) == rows
        return counted

    assert (ordered(2048, 10**9), ordered(8192, 10**9)) == (2048, 8192)
    for rows in (2048, 8192):
        assert rows <= ordered(rows, 30_000) <= 8 * rows


@pytest.mark.soak
def test_time_per_group_does_not_grow_with_distinct_keys() -> None:
    """Four times the keys take about four times the CPU time: a quarter of slack for the machine,
    where one more look at all keys would take sixteen times as long."""

    def seconds(rows: int) -> float:
        batch = numbered(random.Random(1), rows, 10**12)
        start = time.process_time()
        made = run_grouped(
            Grouped(lambda key, group: [group], streamed=False),
            slices(batch, 4096),
            by=("k",),
            sort_by=(),
            schema=batch.schema,
            memory_bytes=10**9,
            batch_rows=4096,
            scratch=Scratch(None),
        )
        assert sum(1 for _ in made) == rows
        return time.process_time() - start

    seconds(1000)  # what only the first call does
    few, many = zip(*((seconds(20_000), seconds(80_000)) for _ in range(5)), strict=True)
    assert statistics.median(many) < 5 * statistics.median(few), (few, many)


def numbered(rng: random.Random, rows: int, distinct: int) -> pa.RecordBatch:
    keys = pa.array([rng.randrange(distinct) for _ in range(rows)])
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("row", pa.int64())])
    return pa.record_batch([keys, pa.array(range(rows))], schema=schema)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("distinct", [1, 7, 10_000])
@pytest.mark.parametrize("runs", [1, 2, 5, FAN_IN, FAN_IN + 1, 3 * FAN_IN + 2])
def test_runs_merge_to_the_same_order(runs: int, distinct: int, seed: int) -> None:
    """However many runs went to scratch, the rows come out as one stable sort gives them."""
    batch = numbered(random.Random(seed), runs * 60, distinct)
    scratch = Scratch(None)
    memory = batch.nbytes // runs
    found = list(
        sorted_batches(
            slices(batch, 10),
            lambda b: row_order(b, [SortKey("k")]),
            schema=batch.schema,
            memory_bytes=max(1, memory) if runs > 1 else 10 * batch.nbytes,
            batch_rows=16,
            scratch=scratch,
        )
    )
    rows = sorted(batch.to_pylist(), key=lambda r: r["k"])
    assert [row for b in found for row in b.to_pylist()] == rows
    assert max(b.num_rows for b in found) <= 16
    assert (scratch.written_bytes > 0) == (runs > 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("memory", [100_000_000, 500])
@pytest.mark.parametrize("distinct", [1, 9, 5000])
def test_groups_equal_a_dictionary(distinct: int, memory: int, streamed: bool, seed: int) -> None:
    """Every key once, its rows sorted within, from memory and from scratch, read up or not."""
    batch = numbered(random.Random(seed), 600, distinct)
    expected = defaultdict(list)
    for row in batch.to_pylist():
        expected[row["k"]].append(row["row"])
    seen: dict[int, list[int]] = {}

    def whole(key: tuple[pa.Scalar, ...], group: pa.Table) -> pa.Table:
        assert key[0].as_py() not in seen
        seen[key[0].as_py()] = group.column("row").to_pylist()
        return group.slice(0, 1)

    def by_batches(key: tuple[pa.Scalar, ...], group: Iterator[pa.RecordBatch]) -> Any:
        first = next(group)
        if key[0].as_py() % 2:  # leaves the rest of its rows unread
            seen[key[0].as_py()] = expected[key[0].as_py()][::-1]
            assert first.column("row")[0].as_py() == expected[key[0].as_py()][-1]
        else:
            rest = [row for b in group for row in b.column("row").to_pylist()]
            seen[key[0].as_py()] = first.column("row").to_pylist() + rest
        yield first.slice(0, 1)

    function: Callable[..., Any] = by_batches if streamed else whole
    made = run_grouped(
        Grouped(function, streamed=streamed),
        slices(batch, 50),
        by=("k",),
        sort_by=(SortKey("row", "descending"),),
        schema=batch.schema,
        memory_bytes=memory,
        batch_rows=64,
        scratch=Scratch(None),
    )
    firsts = [m.column("row")[0].as_py() for m in made]
    assert sorted(firsts) == sorted(rows[-1] for rows in expected.values())
    assert seen == {k: rows[::-1] for k, rows in expected.items()}


def test_scratch_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error names the folder and the setting."""
    missing = tmp_path / "missing"
    with pytest.raises(UnavailableError, match=r"missing.*settings.scratch_folder"):
        Scratch(str(missing)).write([], pa.schema([("a", pa.int64())]))


@pytest.mark.parametrize(
    ("given_keys", "message"),
    [
        ("x", "no such column: found='x'"),
        ([("a", "up")], "direction must be"),
        ("l", "column 'l' of type list<item: int64> has no order"),
    ],
)
def test_bad_sort_keys_are_named(given_keys: Any, message: str) -> None:
    schema = pa.schema([("a", pa.int64()), ("l", pa.list_(pa.int64()))])
    with pytest.raises(InvalidInputError, match=message):
        sort_keys(given_keys, schema)


def test_a_key_of_zero_has_no_sign() -> None:
    """-0.0 and 0.0 are one group, whose key is 0.0 as in Spark, also inside a struct."""
    for kind in (pa.float64(), pa.float32()):
        for values in ([-0.0, 0.0], [0.0, -0.0], [-0.0]):
            plain = pa.array(values, kind)
            for column in (plain, pa.StructArray.from_arrays([plain], ["a"])):
                table = pa.table({"k": column})
                keys: list[Any] = []

                def see(key: tuple[Any, ...], group: pa.Table, seen: list[Any] = keys) -> pa.Table:
                    seen.append(key[0].as_py())
                    return group

                made = run_grouped(
                    Grouped(see),
                    iter(table.to_batches()),
                    by=("k",),
                    sort_by=(),
                    schema=table.schema,
                    memory_bytes=1 << 20,
                    batch_rows=10,
                    scratch=Scratch(None),
                )
                assert sum(group.num_rows for group in made) == len(values)
                assert [str(key) for key in keys] in (["0.0"], ["{'a': 0.0}"])


def test_large_rows_behind_small_ones_are_read_in_small_parts() -> None:
    """What a merge holds of a run follows from the size of its own rows, not of the first rows."""
    sizes: list[int] = []

    class Measured(Scratch):
        def write(self, batches: Any, schema: pa.Schema) -> Any:
            def seen() -> Iterator[pa.RecordBatch]:
                for batch in batches:
                    sizes.append(batch.nbytes)
                    yield batch

            return super().write(seen(), schema)

    memory = 1 << 20
    small = [pa.record_batch({"k": range(n, n + 5_000), "t": ["x"] * 5_000}) for n in (0, 5_000)]
    large = [pa.record_batch({"k": [n] * 20, "t": ["y" * 20_000] * 20}) for n in range(20)]
    rows = sorted_batches(
        iter([*small, *large]),
        lambda batch: row_order(batch, (SortKey("k"),)),
        schema=small[0].schema,
        memory_bytes=memory,
        batch_rows=1000,
        scratch=Measured(None),
    )
    keys = [key for batch in rows for key in batch.column(0).to_pylist()]
    assert keys == sorted(keys)
    assert len(keys) == 10_400
    assert max(sizes) <= memory / (2 * FAN_IN) + 20_100, "more than one row too many"
