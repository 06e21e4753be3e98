"""The program of the recipes, `recipes/nightly.py`, with input of many small map tasks."""

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

PROGRAM = Path(__file__).parents[2] / "recipes" / "nightly.py"
FILES, ROWS, CUSTOMERS = 40, 20_000, 97
ONE_TASK_PER_FILE = {
    "spark.sql.files.maxPartitionBytes": "134217728",
    "spark.sql.files.openCostInBytes": "134217728",
    "spark.ui.enabled": "false",
}


def write_orders(folder: Path) -> None:
    """Write the input: FILES files, which are as many map tasks with ONE_TASK_PER_FILE."""
    folder.mkdir()
    for number in range(FILES):
        customers = [(number * 31 + i) % CUSTOMERS for i in range(ROWS)]
        table = pa.table({"customer": pa.array(customers, pa.int64())})
        pq.write_table(table, folder / f"part-{number:03d}.parquet")


def check_counts(orders: Path, counts: Path) -> None:
    """The program's output is what DuckDB counts."""
    expected = f"select customer, count(*) from '{orders}/*.parquet' group by 1 order by 1"
    found = f"select customer, orders from '{counts}/*.parquet' order by 1"
    assert duckdb.sql(found).fetchall() == duckdb.sql(expected).fetchall()


def map_tasks(log: str) -> tuple[str, int, int, int]:
    """Return (action, run, reused, run again) of the one stage in the report that was printed."""
    (row,) = re.findall(r"^query\S* +(\w+) +.*? (\d+) +(\d+) +(\d+) +(\d+) ", log, re.M)
    action, tasks, *numbers = row
    assert int(tasks) == FILES
    run, reused, again = map(int, numbers)
    return action, run, reused, again
