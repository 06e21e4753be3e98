"""Runs ordinary queries through `query` and `durable`, and reports rows and the producers that ran.

Arguments: folder of the tables (created if it is missing), root of the stages, how many other plans
are made first, so that the JVM's counters differ from those of another run, and the step from query
to query. Rows are compared with those of Spark alone, which the first run leaves in the folder.
"""

import json
import os
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.cluster.faults import session_processes


def listed(texts: list[str]) -> str:
    return ", ".join(texts)


WORDS = listed([f"'x{i}'" for i in range(12)])
NUMBERS = listed([str(i) for i in range(12)])
DAYS = listed([f"date'1995-01-{i + 1:02d}'" for i in range(12)])
DECIMALS = listed([f"{i}.50" for i in range(12)])
TIMES = listed([f"timestamp'1995-01-{i + 1:02d} 00:00:00'" for i in range(12)])
QUERIES = {
    "plain group by": "select r, count(*) from nation group by 1",
    "IN of strings": f"select r, count(*) from nation where name in ({WORDS}, 'CHINA') group by 1",
    "IN of few strings": "select r, count(*) from nation where name in ('a', 'CHINA') group by 1",
    "IN of numbers": f"select r, count(*) from nation where n in ({NUMBERS}) group by 1",
    "IN of dates": f"select status, count(*) from orders where day in ({DAYS}) group by 1",
    "IN of decimals": "select r, count(*) from nation where cast(n as decimal(9,2)) in "
    f"({DECIMALS}) group by 1",
    "IN of timestamps": "select status, count(*) from orders where cast(day as timestamp) in "
    f"({TIMES}) group by 1",
    "IN of structs": "select r, count(*) from nation where struct(n, name) in "
    f"({listed([f'struct({i}L as n, chr({i + 65}) as name)' for i in range(12)])}) group by 1",
    "IN of binaries": "select r, count(*) from nation where cast(name as binary) in "
    f"({listed([f'cast(chr({i + 65}) as binary)' for i in range(12)])}) group by 1",
    "nullif key": "select nullif(r, 1) k, count(*) from nation group by 1",
    "nullif of an expression": "select nullif(n % 7, 3) k, count(*) from nation group by 1",
    "nullif in a filter": "select r, count(*) from nation where nullif(n % 7, 3) > 1 group by 1",
    "between": "select r, count(*) from nation where n between 2 and 5 group by 1",
    "between of an expression": "select r, count(*) from nation where n % 7 + 1 between 2 and 5 "
    "group by 1",
    "array of strings": "select r, max(array_contains(array('a', 'CHINA'), name)) from nation "
    "group by 1",
    "map": "select r, max(map('a', 1, 'b', 2)['a'] + n) from nation group by 1",
    "map by column": "select map('ASIA', 1, 'EUROPE', 2)[name] k, count(*) from region group by 1",
    "struct": "select r, max(named_struct('a', 'x', 'b', name)) from nation group by 1",
    "like any": "select r, count(*) from nation where name like any ('A%', 'B%', '%C%') group by 1",
    "regular expressions": "select regexp_replace(name, 'A', 'b') k, max(split(note, ' ')[0]) "
    "from nation where name rlike '^[A-Z]' group by 1",
    "JSON": "select from_json(to_json(named_struct('a', r)), 'a int').a k, count(*) from nation "
    "group by 1",
    "pivot of strings": "select * from (select r, name, n from nation) pivot (sum(n) for name in "
    "('CHINA', 'JAPAN'))",
    "pivot without groups": "select * from (select r from nation) pivot (count(*) for r in (0, 1))",
    "pivot of two": "select * from (select r, name, n from nation) pivot (sum(n) s, max(n) m for "
    "(r, name) in ((1, 'CHINA'), (2, 'JAPAN')))",
    "case": "select case name when 'CHINA' then 'x' when 'JAPAN' then 'y' else 'z' end k, count(*) "
    "from nation group by 1",
    "values": "select k, count(*) from (values ('a', 1), ('b', 2), (null, 3)) v(k, n) group by 1",
    "window": "select name, rank() over (partition by r order by name) w from nation",
    "cube": "select r, name, count(*) from nation group by cube(1, 2)",
    "lambda": "select r, max(size(filter(array(1, 2, n), x -> x > 1))) from nation group by 1",
    "percentile": "select r, percentile_approx(n, array(0.1, 0.9)) from nation group by 1",
    "try_divide": "select coalesce(try_divide(n, r), 0) k, count(*) from nation group by 1",
    "count_if": "select r, count_if(n > 1), max(name), max_by(name, n) from nation group by 1",
    "distinct": "select r, count(distinct n), count_if(n > 1), max_by(n, name) from nation "
    "group by 1",
    "distinct of all": "select bit_xor(n), count(distinct n) from nation",
    "scalar subquery": "select r, sum(n) from nation where n > (select avg(n) from nation) "
    "group by 1",
    "correlated": "select r, count(*) from nation a where exists (select 1 from region b where "
    "b.r = a.r and b.name <> 'ASIA') group by 1",
    "not in": "select name, count(*) from nation where r not in (select r from region where r > 2) "
    "group by 1",
    "lateral": "select k, count(*) from nation, lateral (select n % 3 as k) group by 1",
    "explode": "select k, count(*) from nation lateral view explode(array(r, n)) as k group by 1",
    "intersect": "select r from nation intersect select r from region",
    "except": "select n from nation except all select r from region",
    "full join": "select * from nation full join region using (r)",
    "CTE": "with q as (select r, count(*) c from nation group by 1) select * from q a join q b "
    "using (c)",
}


def write_tables(folder: Path) -> None:
    """Write three small tables."""
    names = ["ALGERIA", "BRAZIL", "CHINA", "JAPAN", "PERU", "A", "B"]
    nation = {
        "n": list(range(21)),
        "r": [i % 5 for i in range(21)],
        "name": [names[i % 7] for i in range(21)],
        "note": [f"note {i}" for i in range(21)],
    }
    region = {"r": [0, 1, 2, 3, 4], "name": ["AFRICA", "AMERICA", "ASIA", "EUROPE", None]}
    days = [date(1995, 1, 1 + i) for i in range(20)]
    orders = {"day": days, "status": ["F" if i % 3 else "O" for i in range(20)]}
    folder.mkdir()
    for name, columns in (("nation", nation), ("region", region), ("orders", orders)):
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")


def rows(df: DataFrame) -> list[str]:
    return sorted(map(str, df.collect()))


def main(folder: str, root: str, plans_before: str, step: str) -> None:
    """Run and check every so-many-th query."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    first, wanted_file = not Path(folder).exists(), Path(folder, "wanted.json")
    if first:
        write_tables(Path(folder))
    for name in ("nation", "region", "orders"):
        spark.read.parquet(f"{folder}/{name}.parquet").createOrReplaceTempView(name)
    for _ in range(int(plans_before)):
        made = spark.sql("select nullif(n % 7, 3) k, count(distinct r) from nation group by 1")
        made.select(F.transform(F.array("k"), lambda x: x)).collect()
    shuffle = DurableShuffle(spark, root, job="tests")
    answer: dict[str, Any] = {}
    wanted = {} if first else json.loads(wanted_file.read_text())
    for number, (name, text) in enumerate(list(QUERIES.items())[:: int(step)]):
        df = spark.sql(text)
        done = len(shuffle.report().stages)
        if first:
            wanted[name] = rows(df)
        equal = [rows(shuffle.query(df, name=f"q{number}")) == wanted[name]]
        if number % 4 == 0:
            equal.append(rows(shuffle.durable(df, name=f"d{number}")) == wanted[name])
        stages = shuffle.report().stages[done:]
        ran = sum(stage.map_tasks_run for stage in stages)
        why = [stage.why for stage in stages if stage.action == "computed"]
        answer[name] = {"equal": all(equal), "stages": len(stages), "ran": ran, "why": why[:1]}
    wanted_file.write_text(json.dumps(wanted))
    running = session_processes(os.getsid(0)).values()
    workers = [line for line in running if "daemon" in line and "java" not in line.split()[0]]
    answer["python_processes"] = len(workers)
    print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
