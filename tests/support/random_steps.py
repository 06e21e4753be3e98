"""The steps of random programs: each writes one expression over the frames below it.

A step gives a result that Spark determines: what depends on the order in which rows arrive stands
only where that order is fixed.
"""

from pyspark.sql import GroupedData
from pyspark.sql import types as T
from random_expressions import (
    WHOLE,
    aggregates,
    exact,
    expression,
    orderable,
    predicate,
    sorts_whole,
)
from random_programs import MOST_COLUMNS, MOST_ROWS, Frame, Step, Writer
from random_tables import ROWS

Written = tuple[str, int]

ARROW_GROUPS = hasattr(GroupedData, "applyInArrow")
"""False on PySpark 3.5."""


def _sql(text: str, *frames: Frame) -> str:
    given = "".join(f", {name}={f.name}" for name, f in zip("ab", frames, strict=False))
    return f"spark.sql({text!r}{given})"


def _keys(w: Writer, f: Frame, most: int = 2) -> list[str]:
    return w.some(f.where(orderable), 1, most)


def _order(w: Writer, columns: list[str]) -> str:
    ways = ["", " desc", " nulls last", " desc nulls first"]
    return ", ".join(c + w.draw.choice(ways) for c in columns)


# leaves -------------------------------------------------------------------------------------------


def table(w: Writer, *_: Frame) -> Written:
    name = w.draw.choice(sorted(ROWS))
    text = f"spark.table({name + ('_file' if w.chance(0.25) else '')!r})"
    if w.chance(0.12):
        text += w.draw.choice(
            [
                ".sample(fraction=0.5, seed=7)",
                ".sample(True, 1.5, 3)",
                ".withColumn('r', F.rand(5))",
            ]
        )
    return text, 3 * ROWS[name]


def numbers(w: Writer, *_: Frame) -> Written:
    rows = w.draw.choice([0, 1, 20, 60])
    parts = w.draw.choice([1, 1, 2, 2, 3, 5]) if w.chance(0.98) else 200
    text = f"spark.range(0, {rows}, 1, {parts})"
    if w.chance(0.5):
        text += ".selectExpr('id % 5 as k', 'id', 'cast(id % 3 as string) as s')"
    return text, rows


def values(w: Writer, *_: Frame) -> Written:
    text = "select * from values (1, 'a', 1.50), (2, null, 2.25), (null, 'a', null), (1, 'a', 1.50)"
    return _sql(f"{text} as v(k, s, n)"), 4


def recursive(w: Writer, *_: Frame) -> Written:
    text = "with recursive r as (select 1 a union all select a + 1 from r where a < 6)"
    return _sql(f"{text} select a, a % 2 as b from r"), 6


# one frame below ----------------------------------------------------------------------------------


def project(w: Writer, f: Frame, _: Frame) -> Written:
    wanted = w.draw.choice([0, 1, 1, 2, 3, 4, 5])
    texts = [f"{expression(w, f)} as e{i}" for i in range(wanted)]
    return f"{f.name}.selectExpr({', '.join(map(repr, texts))})", f.bound


def ones(w: Writer, f: Frame, _: Frame) -> Written:
    return f"{f.name}.select(F.lit(1)){w.draw.choice(['', '.limit(1)', '.distinct()'])}", f.bound


def filtered(w: Writer, f: Frame, _: Frame) -> Written:
    return f"{f.name}.where({predicate(w, f)!r})", f.bound


def grouped(w: Writer, f: Frame, _: Frame) -> Written:
    keys = [repr(k) for k in _keys(w, f)] if w.chance(0.75) else []
    aggs = ", ".join(f"F.expr({a.rsplit(' as ')[0]!r})" for a in aggregates(w, f))
    return f"{f.name}.groupBy({', '.join(keys)}).agg({aggs})", max(1, f.bound)


def counted(w: Writer, f: Frame, _: Frame) -> Written:
    texts = ["count(*)", "count(1)", "count_if(true)", "sum(1)", "any_value(1)"]
    return f"{f.name}.agg(F.expr({w.draw.choice(texts)!r}))", 1


def grouping_sets(w: Writer, f: Frame, _: Frame) -> Written:
    keys = _keys(w, f, 3)
    aggs = ", ".join(aggregates(w, f, 2))
    if not keys:
        return f"{f.name}.agg(F.count(F.lit(1)))", 1
    listed = ", ".join(keys)
    of = w.draw.choice(["rollup", "cube", "sets"])
    sets = f"grouping sets (({listed}), ({keys[0]}), ())" if of == "sets" else f"{of}({listed})"
    text = f"select {listed}, grouping_id() as g, {aggs} from {{a}} group by {sets}"
    return _sql(text, f), 8 * f.bound + 1


def window(w: Writer, f: Frame, _: Frame) -> Written:
    by, order = _keys(w, f), f.where(orderable)
    if not order:
        return f"{f.name}.limit({f.bound + 1})", f.bound
    values = ["rank()", "dense_rank()", "count(*)"]
    if sorts_whole(f):
        values += ["row_number()", f"lag({order[0]})", "ntile(3)", f"nth_value({order[-1]}, 2)"]
    split = f"partition by {', '.join(by)} " if w.chance(0.7) else ""
    over = f"({split}order by {_order(w, w.some(order, len(order)))})"
    kept = w.some([field.name for field in f.fields], 1, MOST_COLUMNS - 1)
    text = f"select {', '.join(kept)}, {w.draw.choice(values)} over {over} as w from {{a}}"
    return _sql(text, f), f.bound


def distinct(w: Writer, f: Frame, _: Frame) -> Written:
    if not all(orderable(field.dataType) for field in f.fields):
        return f"{f.name}.select({', '.join(map(repr, _keys(w, f)))}).distinct()", f.bound
    return f"{f.name}{w.draw.choice(['.distinct()', '.dropDuplicates()'])}", f.bound


def limited(w: Writer, f: Frame, _: Frame) -> Written:
    n = w.draw.choice([0, 1, 3, 10])
    if sorts_whole(f) and f.fields and w.chance(0.7):
        order = _order(w, w.some(f.where(orderable), MOST_COLUMNS * 9, MOST_COLUMNS * 9))
        more = w.draw.choice(["", f" offset {n}"])
        return _sql(f"select * from {{a}} order by {order} limit {n + 1}{more}", f), n + 1
    how = w.draw.choice([f".limit({n}).agg(F.count('*'))", ".limit(0)", f".limit({f.bound + 9})"])
    return f.name + how, max(1, f.bound)


def sort(w: Writer, f: Frame, _: Frame) -> Written:
    columns = f.where(orderable)
    w.ordered = 0 < len(columns) == len(f.fields)  # rows that differ elsewhere are ties
    if not columns:
        return f"{f.name}.repartition(2)", f.bound
    return _sql(f"select * from {{a}} order by {_order(w, columns)}", f), f.bound


def explode(w: Writer, f: Frame, _: Frame) -> Written:
    arrays = f.of(T.ArrayType)
    made = w.draw.choice(arrays) if arrays else "array(1, null, 3)"
    bound = f.bound * 60 if arrays else f.bound * 3
    kept = "" if bound > MOST_ROWS else f"{', '.join(x.name for x in f.fields[:4])}, "
    if bound > MOST_ROWS:
        return _sql(
            f"select count(*), count(e) from {{a}} lateral view explode({made}) v as e", f
        ), 1
    kept = kept if f.fields else ""
    texts = [
        f"select {kept}explode({made}) as e from {{a}}",
        f"select {kept}posexplode({made}) as (p, e) from {{a}}",
        f"select {kept}e from {{a}} lateral view outer explode({made}) v as e",
        f"select {kept}e from {{a}}, lateral (select explode({made}) as e)",
        f"select {kept}z.* from {{a}} left join lateral (select size({made}) as n) z",
        f"select {kept}stack(2, 1, 'x', 2, null) as (n, s) from {{a}}",
    ]
    return _sql(w.draw.choice(texts), f), max(bound, 2 * f.bound)


def pivoted(w: Writer, f: Frame, _: Frame) -> Written:
    whole, texts = f.of(*WHOLE), f.of(T.StringType)
    if not whole and not texts:
        return counted(w, f, f)
    by = w.draw.choice(whole + texts)
    listed = "0, 1, 2" if by in whole else "'s1', 's2', '0', ''"
    keys = [k for k in _keys(w, f) if k != by][:1]
    over = w.draw.choice(["count(1)", "count(*)"] + [f"max({k})" for k in f.where(exact)])
    if w.chance(0.5):
        grouped_by = ", ".join(map(repr, keys))
        pivot = f"{f.name}.groupBy({grouped_by}).pivot({by!r}, [{listed}]).agg(F.expr({over!r}))"
        return pivot, f.bound + 1
    inner = ", ".join(dict.fromkeys([*keys, by, *[c for c in f.where(exact) if c in over]]))
    return _sql(
        f"select * from (select {inner} from {{a}}) pivot ({over} for {by} in ({listed}))", f
    ), f.bound + 1


def unpivoted(w: Writer, f: Frame, _: Frame) -> Written:
    one = f.of(T.StringType) or f.of(T.LongType)
    if not one:
        return filtered(w, f, f)
    return f"{f.name}.unpivot([], {one!r}, 'n', 'v')", len(one) * f.bound


def repartitioned(w: Writer, f: Frame, _: Frame) -> Written:
    n = w.draw.choice([1, 2, 2, 3]) if w.chance(0.98) else 200
    keys = ", ".join(map(repr, _keys(w, f)))
    hows = [f".repartition({n})", f".coalesce({n})", ".hint('rebalance')"]
    if keys:
        hows += [f".repartition({n}, {keys})", f".repartition({keys})"]
        hows += [f".repartitionByRange({n}, {keys})", f".sortWithinPartitions({keys})"]
    return f.name + w.draw.choice(hows), f.bound


def stored(w: Writer, f: Frame, _: Frame) -> Written:
    keys = ", ".join(map(repr, _keys(w, f)))
    hows = [f"S.durable({f.name})", f"S.repartition({f.name}, {w.draw.randint(1, 4)})"]
    hows += [f"S.repartition({f.name}, {w.draw.randint(1, 4)}, {keys})"] if keys else []
    return w.draw.choice(hows), f.bound


def twin_names(w: Writer, f: Frame, _: Frame) -> Written:
    """Columns of one name, through something that does not name them."""
    names = ", ".join(repr("d") for _ in f.fields)
    whole = all(orderable(field.dataType) for field in f.fields)
    hows = ["S.durable({})", "S.repartition({}, 2)", "{}.repartition(3)", "{0}.union({0})"]
    hows += ["{}.distinct()", "{}.exceptAll({}.limit(0))"] if whole else []
    given = f"{f.name}.toDF({names})"
    return w.draw.choice(hows).replace("{0}", "{}").replace("{}", given), 2 * f.bound


def python(w: Writer, f: Frame, _: Frame) -> Written:
    whole, texts = f.of(*WHOLE), f.of(T.StringType)
    add = w.draw.randint(1, 3)
    kept = ", ".join(repr(x.name) for x in f.fields[:4])
    schema = f"{f.name}.schema"
    hows = [
        f"{f.name}.mapInArrow(lambda batches: batches, {schema})" if f.fields else "",
        f"{f.name}.select({kept}{', ' if kept else ''}F.udf(lambda: {add}, 'long')())",
    ]
    if whole:
        c = w.draw.choice(whole)
        udf = f"lambda v: None if v is None else v + {add}"
        arrow = ", useArrow=True" if w.chance(0.4) else ""
        hows += [
            f"{f.name}.select({kept}, F.udf({udf}, 'long'{arrow})({c!r}))",
            f"{f.name}.select({kept}, F.pandas_udf(lambda v: v.isna().astype('int64') + {add},"
            f" 'long', F.PandasUDFType.SCALAR)({c!r}))",
            f"{f.name}.where(F.udf(lambda v: v is None or v % {add + 1} == 0, 'boolean')({c!r}))",
            f"{f.name}.select({c!r}).mapInPandas(lambda frames: (p.dropna() for p in frames),"
            f" '{c} long')",
            f"{f.name}.select({c!r}).groupBy({c!r}).applyInArrow(lambda t: t.slice(0, {add}),"
            f" {f.name}.select({c!r}).schema)"
            if ARROW_GROUPS
            else "",
        ]
    if texts:
        c = w.draw.choice(texts)
        hows += [f"{f.name}.groupBy(F.udf(lambda v: (v or 'n')[:1], 'string')({c!r})).count()"]
    return w.draw.choice([how for how in hows if how]), f.bound


def common(w: Writer, f: Frame, _: Frame) -> Written:
    """A common table expression that is read twice."""
    keys = f.where(exact)
    if not keys:
        return counted(w, f, f)
    k, how = (
        w.draw.choice(keys),
        w.draw.choice(["join", "left join", "full join", "left semi join"]),
    )
    text = f"with q as (select {k} as k, count(*) as n from {{a}} group by {k})"
    wanted = "x.k, x.n" if "semi" in how else "x.k, y.n"
    on = w.draw.choice(["x.k = y.k", "x.k <=> y.k", "x.n = y.n - 1"])
    if f.bound**2 > MOST_ROWS and "n -" in on:
        on = "x.k = y.k"
    return _sql(
        f"{text} select {wanted} from q x {how} q y on {on}", f
    ), f.bound**2 if "n -" in on else 2 * f.bound


def unknown(w: Writer, f: Frame, _: Frame) -> Written:
    """What another run cannot recognise: an unseeded random number."""
    w.unresolved = True
    return f"{f.name}.where(F.rand() >= 0)", f.bound


# two frames below ---------------------------------------------------------------------------------


def _pairs(a: Frame, b: Frame) -> list[tuple[str, str]]:
    return [
        (x.name, y.name)
        for x in a.fields
        for y in b.fields
        if x.dataType == y.dataType and orderable(x.dataType)
    ]


def join(w: Writer, a: Frame, b: Frame) -> Written:
    how = w.draw.choice(["inner", "left", "right", "full", "left semi", "left anti"])
    pairs = _pairs(a, b)
    if a.bound * b.bound > MOST_ROWS and how not in ("left semi", "left anti"):
        how = "left semi"
    hints = ["broadcast(b)", "merge(b)", "shuffle_hash(b)", "shuffle_replicate_nl(b)", ""]
    hint = w.draw.choice(hints)
    chosen = w.draw.sample(pairs, min(len(pairs), w.draw.choice([1, 1, 2])))
    ons = [f"a.{x} {w.draw.choice(['=', '=', '=', '<=>'])} b.{y}" for x, y in chosen]
    if not ons or w.chance(0.1):
        ons = [*ons, w.draw.choice(["1 = 1", "a.{x} is not null", "length(b.{y}) > 0"])]
        x, y = (f.fields[0].name if f.fields else "" for f in (a, b))
        texts = set(b.of(T.StringType))
        ons[-1] = ons[-1].format(x=x, y=y) if x and y in texts else "1 = 1"
    left = [f"a.{x.name} as l{i}" for i, x in enumerate(a.fields[:4])]
    right = (
        []
        if how in ("left semi", "left anti")
        else [f"b.{x.name} as r{i}" for i, x in enumerate(b.fields[:3])]
    )
    wanted = ", ".join(left + right) or "1 as one"
    start = f"select /*+ {hint} */" if hint else "select"
    text = f"{start} {wanted} from {{a}} a {how} join {{b}} b on {' and '.join(ons)}"
    semi = how in ("left semi", "left anti")
    return _sql(text, a, b), a.bound if semi else a.bound * b.bound + a.bound + b.bound


def cross(w: Writer, a: Frame, b: Frame) -> Written:
    both = f"{a.name}.crossJoin({b.name})"
    if w.chance(0.5) or a.bound * b.bound > MOST_ROWS:
        return f"{both}.agg(F.count(F.lit(1)))", 1
    if w.chance(0.3):
        return f"{both}.select(F.lit('x'))", a.bound * b.bound
    if len(a.fields) + len(b.fields) > MOST_COLUMNS:
        return f"{both}.select(F.lit(1))", a.bound * b.bound
    return both, a.bound * b.bound


def _aligned(w: Writer, a: Frame, b: Frame, fits: bool) -> tuple[str, str]:
    """Both frames with columns of the same types; none if they share no type."""
    pairs = (
        _pairs(a, b)
        if fits
        else [(x.name, y.name) for x in a.fields for y in b.fields if x.dataType == y.dataType]
    )
    chosen = w.draw.sample(pairs, min(len(pairs), w.draw.choice([0, 1, 2, 3])))
    left, right = ([repr(p[i]) for p in chosen] for i in (0, 1))
    return f"{a.name}.select({', '.join(left)})", f"{b.name}.select({', '.join(right)})"


def union(w: Writer, a: Frame, b: Frame) -> Written:
    left, right = _aligned(w, a, b, fits=False)
    if a.name == b.name or a.df.schema == b.df.schema:
        left, right = a.name, b.name
    return f"{left}.unionAll({right})", a.bound + b.bound


def intersect(w: Writer, a: Frame, b: Frame) -> Written:
    left, right = _aligned(w, a, b, fits=True)
    how = w.draw.choice(["intersect", "intersectAll", "exceptAll", "subtract"])
    return f"{left}.{how}({right})", a.bound


def subquery(w: Writer, a: Frame, b: Frame) -> Written:
    pairs = _pairs(a, b)
    texts = [
        "select * from {a} where exists (select 1 from {b})",
        "select *, (select count(*) from {b}) as n from {a}",
        "select *, exists (select 1 from {b} where 1 = 2) as n from {a}",
        "select count(*) from {a} where not exists (select * from {b} limit 1)",
    ]
    if pairs:
        x, y = w.draw.choice(pairs)
        texts += [
            f"select * from {{a}} where {x} in (select {y} from {{b}})",
            f"select * from {{a}} where {x} not in (select {y} from {{b}} where {y} is not null)",
            f"select * from {{a}} where {x} not in (select {y} from {{b}})",
            f"select * from {{a}} a where exists (select 1 from {{b}} b where b.{y} = a.{x})",
            f"select * from {{a}} a where not exists (select 1 from {{b}} b where b.{y} = a.{x})",
            f"select *, (select count(*) from {{b}} b where b.{y} = a.{x}) as n from {{a}} a",
        ]
        if y in b.where(exact):
            texts += [
                f"select * from {{a}} where {x} >= (select min({y}) from {{b}})",
                f"select *, (select max({y}) from {{b}} b where b.{y} = a.{x}) as m from {{a}} a",
            ]
    return _sql(w.draw.choice(texts), a, b), max(1, a.bound)


def cogroup(w: Writer, a: Frame, b: Frame) -> Written:
    pairs = [(x, y) for x, y in _pairs(a, b) if x in a.of(T.LongType)]
    if not pairs or not ARROW_GROUPS:
        return union(w, a, b)
    x, y = w.draw.choice(pairs)
    sides = f"{a.name}.select({x!r}).groupBy({x!r}).cogroup({b.name}.select({y!r}).groupBy({y!r}))"
    either = "lambda l, r: l if len(l) else r.rename_columns(l.column_names)"
    schema = f"{a.name}.select({x!r}).schema"
    return f"{sides}.applyInArrow({either}, {schema})", a.bound + b.bound


LEAVES: dict[str, Step] = {
    **{f"table{i}": table for i in range(14)},
    **{f"numbers{i}": numbers for i in range(5)},
    **{f"values{i}": values for i in range(2)},
    "recursive": recursive,
}
STEPS: dict[str, Step] = {
    step.__name__: step
    for step in (
        *(project, ones, filtered, grouped, counted, grouping_sets, window, distinct, limited),
        *(sort, explode, pivoted, unpivoted, repartitioned, stored, twin_names, python, common),
        *(unknown, join, cross, union, intersect, subquery, cogroup),
    )
}
