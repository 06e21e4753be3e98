"""SQL scripts as companies run them each night: their inputs, and how they are started and killed.

A script is a file of `tests/spark/sql_scripts`. It can be run again from its start, as plain Spark
requires it, and gives the same tables then. `NAME.merge.sql` needs a format with MERGE.
"""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from processes import descendants

SCRIPTS = Path(__file__).parents[1] / "spark" / "sql_scripts"
FORMATS = ("parquet", "delta", "iceberg")
INPUTS = {
    "customers": "select i + 1 id, 'c' || i as name, 'city' || i % 7 as city, "
    "date '2025-12-01' + (i % 30)::int since from range(120) t(i)",
    "orders": "select i + 1 id, (i * 7919) % 97 + 1 customer_id, "
    "date '2026-01-01' + ((i * 31) % 120)::int as day, "
    "cast((i * 37) % 9000 / 100 as decimal(10, 2)) amount, "
    "['shipped', 'placed', 'returned', 'shipped'][i % 4 + 1] status from range(1500) t(i)",
    "items": "select i % 1500 + 1 order_id, 'sku' || (i * 13) % 40 sku, i % 5 + 1 quantity, "
    "cast((i * 11) % 4000 / 100 as decimal(10, 2)) price from range(4000) t(i)",
    "payments": "select i + 1 id, (i * 17) % 1500 + 1 order_id, "
    "['card', 'cash', 'coupon'][i % 3 + 1] as method, (i * 101) % 7000 cents from range(1700) t(i)",
    "events": "select i id, (i * 31) % 83 user_id, timestamp '2026-01-01 00:00:00' "
    "+ to_minutes(i * 97 % 2000) as at, "
    "['home', 'list', 'cart', 'pay', 'help'][(i * 7) % 5 + 1] page from range(4000) t(i)",
    "changes": "select i id, (i * 19) % 130 + 1 customer_id, 'city' || (i * 3) % 11 city, "
    "date '2026-01-01' + ((i * 23) % 150)::int as changed from range(600) t(i)",
}
_FILES = 4
_RUN = ("-m", "durable_shuffle.jobs.cli", "run", "--first-delay", "0.1", "--transparent")


@dataclass(frozen=True, slots=True)
class Script:
    """One script in one format."""

    file: str
    format: str

    @property
    def name(self) -> str:
        """Also that of its namespace and of its job."""
        return f"{self.file.partition('.')[0]}_{self.format}"

    @property
    def namespace(self) -> str:
        return f"ice.{self.name}" if self.format == "iceberg" else self.name

    def text(self, inputs: Path) -> str:
        """Return its statements, behind those that open its namespace and its inputs."""
        begin = [f"CREATE NAMESPACE IF NOT EXISTS {self.namespace}", f"USE {self.namespace}"]
        begin += [
            f"CREATE TEMPORARY VIEW {name} USING parquet OPTIONS (path '{inputs / name}')"
            for name in INPUTS
        ]
        own = (SCRIPTS / self.file).read_text().replace("${format}", self.format)
        return ";\n".join([*begin, own])


def scripts() -> list[Script]:
    """Return all scripts in all formats that they can be written in."""
    files = sorted(path.name for path in SCRIPTS.iterdir())
    return [
        Script(file, format_)
        for file in files
        for format_ in FORMATS
        if format_ != "parquet" or not file.endswith(".merge.sql")
    ]


def write_inputs(folder: Path) -> Path:
    """Write each input as a folder of Parquet files, and return the folder of all."""
    for name, query in INPUTS.items():
        (folder / name).mkdir(parents=True)
        for part in range(_FILES):
            rows = duckdb.sql(f"{query} where i % {_FILES} = {part}")
            rows.write_parquet(str(folder / name / f"part-{part}.parquet"))
    return folder


def write_settings(folder: Path, settings: dict[str, str]) -> Path:
    """Write a folder of Spark settings for SPARK_CONF_DIR, with a catalog that outlives drivers."""
    folder.mkdir(parents=True)
    more = {
        "spark.master": "local[2]",
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.files.minPartitionNum": "4",
        "spark.sql.shuffle.partitions": "3",
        "spark.sql.catalogImplementation": "hive",
        "spark.hadoop.javax.jdo.option.ConnectionURL": (
            f"jdbc:derby:;databaseName={folder / 'metastore'};create=true"
        ),
    }
    lines = [f"{name} {value}" for name, value in {**settings, **more}.items()]
    (folder / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    return folder


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run of `durable-shuffle run` ended."""

    code: int
    said: str
    killed: str
    """What was killed, and at how many segments; "" if the run ended before."""


def run_and_kill(
    script: Path, root: Path, folder: Path, environment: dict[str, str], drawn: random.Random
) -> Ended:
    """Run a script by the command line; SIGKILL its first driver once some segments are stored.

    Args:
        drawn: how many segments, and whether Python dies, its JVM, or both.
    """
    wanted, victim = drawn.randint(1, 5), drawn.choice(["python", "java", "both"])
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, *_RUN, "--url", str(root), str(script)],
            cwd=folder,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
            stdout=said,
            stderr=said,
        )
        killed = ""
        try:
            while process.poll() is None and not killed:
                time.sleep(0.02)  # the moment is drawn; nothing is waited for
                if _segments(root) >= wanted:
                    killed = f"{victim} at {_segments(root)}" if _kill(process.pid, victim) else ""
            code = process.wait(300)
        finally:
            process.kill()
        said.seek(0)
        return Ended(code, said.read(), killed)


def _segments(root: Path) -> int:
    return sum(1 for _ in root.glob("**/segments/*/*"))


def _kill(runner: int, victim: str) -> bool:
    """Kill the driver below the command; return whether it was there."""
    found: dict[str, list[int]] = {"python": [], "java": []}
    for pid, command in descendants(runner):
        if command == "java":
            found["java"].append(pid)
        elif not found["python"]:
            found["python"].append(pid)
    doomed = found.get(victim, [*found["python"], *found["java"]])
    for pid in doomed:
        os.kill(pid, signal.SIGKILL)
    return bool(doomed)


def rows_in(spark: Any, script: Script) -> dict[str, list[str]]:
    """Return all rows of all tables of a script, sorted."""
    names = [
        row.tableName
        for row in spark.sql(f"SHOW TABLES IN {script.namespace}").collect()
        if not row.isTemporary
    ]
    return {
        name: sorted(map(str, spark.table(f"{script.namespace}.{name}").collect()))
        for name in sorted(names)
    }
