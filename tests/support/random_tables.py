"""The tables of random programs: every type, nulls, duplicates, NaN and -0.0, no rows.

Each exists twice: as Parquet files, and computed, which costs a fraction of reading a file.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

TABLES = {
    "numbers": (
        (40, 3),
        "case when id % 7 = 0 then null else id % 11 end as k",
        "cast(id % 5 as tinyint) as t",
        "cast(id % 9 - 4 as smallint) as m",
        "cast(id as int) as i",
        "case id % 8 when 0 then double('NaN') when 1 then -0.0D when 2 then 0.0D when 3 then null"
        " when 4 then double('Infinity') else id / 4.0D end as d",
        "cast(case when id % 6 = 0 then -0.0D else id % 3 / 2.0D end as float) as f",
        "case id % 3 when 0 then true when 1 then false end as b",
    ),
    "decimals": (
        (24, 2),
        "cast(id % 10 as decimal(1, 0)) as d1",
        "cast(id * 12.345 as decimal(9, 3)) as d9",
        "cast(id / 1000 as decimal(18, 18)) as d18",
        "case when id % 4 = 0 then null else cast(-id * 1.01 as decimal(19, 2)) end as d19",
        "cast(repeat('9', cast(id % 19 + 1 as int)) as decimal(28, 9)) as d28",
        "cast(repeat('7', 38) as decimal(38, 0)) - cast(id % 3 as decimal(38, 0)) as d38",
        "cast(concat('0.', repeat(cast(id % 9 as string), 38)) as decimal(38, 38)) as e38",
    ),
    "words": (
        (36, 2),
        "id % 6 as k",
        "case id % 9 when 0 then null when 1 then '' when 2 then 'ß€ü' else concat('s', id % 4)"
        " end as s",
        "case when id % 5 = 0 then null else cast(concat('\\u0000', id % 7) as binary) end as x",
        "date_add(date'1999-12-28', cast(id % 12 as int)) as dt",
        "timestamp_micros(id * 86399999999) as ts",
        "cast(timestamp_micros(id % 5 * 3600000001) as timestamp_ntz) as tn",
        "interval '1' second * (id % 4) as iv",
    ),
    "nested": (
        (30, 2),
        "cast(id % 4 as int) as k",
        "case when id % 6 = 0 then null else array(id % 3, null, id % 2) end as a",
        "case when id % 7 = 0 then null else named_struct('x', id % 3, 'y', cast(id % 2 as string))"
        " end as st",
        "case when id % 5 = 0 then map() else map('a', id % 3, concat('b', id % 2), null) end"
        " as mp",
        "array(named_struct('u', id % 2, 'v', array(cast(id % 3 as string)))) as deep",
    ),
    "twins": ((60, 4), "id % 4 as k", "cast(id % 2 as string) as s", "date'2020-02-29' as dt"),
    "empty": ((0, 2), "id as k", "cast(id as string) as s", "double(id) as d", "array(id) as a"),
    "single": ((1, 1), "id + 3 as k", "'s1' as s", "cast(null as timestamp) as ts"),
}
"""Table -> (rows, files), columns."""

ROWS = {name: columns[0][0] for name, columns in TABLES.items()}


def _computed(session: SparkSession, name: str) -> DataFrame:
    (rows, partitions), *columns = TABLES[name]
    return session.range(0, rows, 1, partitions).selectExpr(*columns)


def write_tables(session: SparkSession, folder: Path) -> None:
    """Write each table as a folder of Parquet files."""
    for name in TABLES:
        _computed(session, name).write.parquet(str(folder / name))


def read_tables(session: SparkSession, folder: Path) -> None:
    """Make the tables known to a session: `t` is computed, `t_file` lies in files."""
    for name in TABLES:
        computed = _computed(session, name)
        computed.createOrReplaceTempView(name)
        files = session.read.schema(computed.schema).parquet(str(folder / name))
        files.createOrReplaceTempView(f"{name}_file")
