"""Random SQL expressions over the columns of a frame, and which columns have an order or an equal.

Drawn are only expressions whose value Spark itself determines: sums over floating point take
multiples of 1/4, and a float goes into a minimum or a sort only where -0.0 cannot show.
"""

from pyspark.sql import types as T
from random_programs import Frame, Writer

WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
FLOATING = (T.DoubleType, T.FloatType)
MANY_STRINGS = ", ".join(f"'s{i}'" for i in range(12))


def orderable(kind: T.DataType) -> bool:
    """A type that can be sorted."""
    if isinstance(kind, T.ArrayType):
        return orderable(kind.elementType)
    if isinstance(kind, T.StructType):
        return all(orderable(field.dataType) for field in kind.fields)
    return not isinstance(kind, T.MapType)


def exact(kind: T.DataType) -> bool:
    """A type that can be sorted, and in which equal values are the same to the bit."""
    return orderable(kind) and not any(name in kind.simpleString() for name in ("double", "float"))


def sorts_whole(frame: Frame) -> bool:
    """Sorting by all columns leaves ties among identical rows only."""
    return all(exact(field.dataType) for field in frame.fields)


def summable(kind: T.DataType) -> bool:
    """A type whose sums neither overflow nor depend on the order."""
    return isinstance(kind, (*WHOLE, *FLOATING)) or (
        isinstance(kind, T.DecimalType) and kind.precision <= 20
    )


_OF: tuple[tuple[tuple[type[T.DataType], ...], tuple[str, ...]], ...] = (
    (
        WHOLE,
        (
            *("{0} % 3", "-{0}", "cast({0} as string)", "cast({0} % 100 as decimal(9, 2)) / 4"),
            *("{0} in (1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)", "nullif({0} % 7, 3)"),
            *("{0} % 7 + 1 between 2 and 5", "case when {0} > 2 then {0} end", "bigint({0} % 9)"),
            *("map(0, 'n', 1, 'e')[cast({0} % 3 as int)]", "array({0}, null, {0} % 2)"),
            *("filter(array(1, 2, {0}), x -> x > 1)", "coalesce(try_divide({0}, {0} % 3), 0)"),
            *("make_date(2020, 1, cast(abs({0}) % 28 + 1 as int))", "conv({0} % 50, 10, 2)"),
        ),
    ),
    (FLOATING, ("{0} + 0.0", "isnan({0})", "{0} > 1", "nanvl({0}, 0)", "-{0}", "{0} <=> 0.0")),
    ((T.DecimalType,), ("-{0}", "{0} = abs({0})", "cast({0} as string)", "{0} in (0.5, 1, 2, 3)")),
    (
        (T.StringType,),
        (
            *(
                "length({0})",
                "upper({0})",
                "substr({0}, 1, 1)",
                "concat({0}, 'x')",
                "{0} like 's%'",
            ),
            *(
                "coalesce({0}, '~')",
                f"{{0}} in ({MANY_STRINGS})",
                "split({0}, '[0-9]')",
                "{0} > 's1'",
            ),
            *(
                "cast({0} as binary)",
                "{0} like any ('s1%', '%2', 'ß%')",
                "regexp_replace({0}, 's', 'b')",
            ),
            *("from_json(to_json(struct({0} as j)), 'j string')", "md5({0})"),
            *("case {0} when 's1' then 'x' when 's2' then 'y' else 'z' end",),
        ),
    ),
    ((T.BinaryType,), ("hex({0})", "length({0})", "md5({0})", "{0} > X'0031'")),
    (
        (T.DateType,),
        ("date_add({0}, 3)", "year({0})", "trunc({0}, 'MM')", "{0} < date'2000-01-04'"),
    ),
    (
        (T.TimestampType, T.TimestampNTZType),
        ("hour({0})", "date_trunc('DAY', {0})", "cast({0} as date)", "{0} + interval '1' hour"),
    ),
    ((T.TimestampType,), ("cast({0} as timestamp_ntz)", "unix_micros({0})")),
    ((T.DayTimeIntervalType,), ("{0} * 2", "{0} > interval '1' second")),
    ((T.BooleanType,), ("not {0}", "{0} and null", "if({0}, 1, 2)")),
    ((T.ArrayType,), ("size({0})", "try_element_at({0}, 1)", "transform({0}, (x, i) -> i)")),
    ((T.MapType,), ("map_keys({0})", "size({0})", "try_element_at({0}, 'a')", "map_entries({0})")),
)
_ANY = (
    "{0} is null",
    "struct({0}, 1 as one)",
    "array({0})",
    "{0}",
    "{0}",
    "{0}",
    "1",
    "null",
    "'c'",
)


def expression(w: Writer, frame: Frame) -> str:
    """Return an expression over at most one column."""
    if not frame.fields:
        return w.draw.choice(["1", "'one'", "cast(null as int)"])
    field = w.draw.choice(frame.fields)
    texts = [t for kinds, texts in _OF if isinstance(field.dataType, kinds) for t in texts]
    if isinstance(field.dataType, T.StructType):
        texts += [f"{{0}}.{inner.name}" for inner in field.dataType.fields]
    if isinstance(field.dataType, T.MapType) and not isinstance(
        field.dataType.keyType, T.StringType
    ):
        texts = ["map_keys({0})", "size({0})"]
    text = w.draw.choice(_ANY if not texts or w.chance(0.25) else texts)
    return text.format(field.name)


def predicate(w: Writer, frame: Frame) -> str:
    """Return a condition."""
    field = w.draw.choice(frame.fields) if frame.fields else None
    if field is None or w.chance(0.05):
        return w.draw.choice(["true", "1 = 2", "null"])
    c, texts = field.name, ["{0} is not null", "{0} is null"]
    if isinstance(field.dataType, WHOLE):
        texts += ["{0} % 2 = 0", "{0} > 2", "nullif({0} % 7, 3) > 1", "{0} between 1 and 8"]
        texts += ["{0} in (1, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)", "{0} <> 3"]
    elif isinstance(field.dataType, FLOATING):
        texts += ["{0} = 0", "isnan({0})", "{0} < 2", "{0} >= double('NaN')"]
    elif isinstance(field.dataType, T.StringType):
        texts += ["{0} like 's%'", f"{{0}} in ({MANY_STRINGS})", "{0} > ''", "length({0}) = 2"]
    elif isinstance(field.dataType, T.DecimalType):
        texts += ["{0} > 0.5", "{0} <> 1"]
    elif isinstance(field.dataType, T.ArrayType):
        texts += ["size({0}) > 1"]
    return w.draw.choice(texts).format(c)


def aggregates(w: Writer, frame: Frame, most: int = 3) -> list[str]:
    """Return a few aggregates, with names."""
    found = []
    for i in range(w.draw.randint(1, most)):
        texts = ["count(*)", "count(1)"]
        if frame.fields:
            field = w.draw.choice(frame.fields)
            texts += ["count({0})"]
            if orderable(field.dataType):
                texts += ["count(distinct {0})"]
            if exact(field.dataType):
                texts += [
                    "max({0})",
                    "min({0})",
                    "sort_array(collect_list({0}))",
                    "mode({0}, true)",
                ]
                texts += ["sort_array(collect_set({0}))", "max_by({0}, {0})"]
            if summable(field.dataType):
                texts += ["sum({0})", "sum(distinct {0})", "count_if({0} > 1)"]
            if isinstance(field.dataType, WHOLE):
                texts += ["avg({0})", "percentile({0}, 0.5)", "bit_xor({0})", "first({0} % 1)"]
            text = w.draw.choice(texts).format(field.name)
        else:
            text = w.draw.choice(texts)
        kept = " filter (where " + predicate(w, frame) + ")" if w.chance(0.15) else ""
        found.append(f"{text}{kept} as a{i}")
    return found
