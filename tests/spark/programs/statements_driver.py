"""Writes Delta and Iceberg tables by SQL: `statements_driver.py FOLDER JARS KIND:NAME…`.

Each statement runs in plain Spark, then twice inside `transparent()`, each time on a table of its
own. The JSON that it prints has, for each, the rows of the three tables, how many map tasks ran,
what was left to Spark, and the label of the newest commit. `KIND:*` is all statements. Each kind
also has "labels": those of a table to which a DataFrame is appended three times.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tables_driver import session

from durable_shuffle import DurableShuffle

SUM = "SELECT k, sum(id) AS s FROM t GROUP BY k"
START = "CREATE TABLE {table} (k BIGINT, s BIGINT) USING {kind}"
FILL = "INSERT INTO {table} VALUES (1, 1), (99, 2)"
MERGE = (
    "MERGE INTO {table} d USING ({sum}) AS n ON d.k = n.k "
    "WHEN MATCHED THEN UPDATE SET s = n.s WHEN NOT MATCHED THEN INSERT (k, s) VALUES (n.k, n.s)"
).replace("{sum}", SUM)
PLACES = {"delta": "", "iceberg": "ice.db."}
STATEMENTS: dict[str, tuple[list[str], str]] = {
    "insert": ([START], f"INSERT INTO {{table}} {SUM}"),
    "overwrite": ([START, FILL], f"INSERT OVERWRITE {{table}} {SUM}"),
    "replace where": (
        [START, FILL],
        f"INSERT INTO {{table}} REPLACE WHERE k = 1 SELECT * FROM ({SUM}) WHERE k = 1",
    ),
    "create": ([], f"CREATE TABLE {{table}} USING {{kind}} AS {SUM}"),
    "replace": ([START, FILL], f"CREATE OR REPLACE TABLE {{table}} USING {{kind}} AS {SUM}"),
    "merge": ([START, FILL], MERGE),
    "behind its own rows": (  # Iceberg answers the maximum without a scan
        [START, FILL],
        "INSERT INTO {table} SELECT k + 100, sum(id) FROM t "
        "WHERE k < (SELECT max(k) FROM {table}) GROUP BY k",
    ),
    "own rows": (
        [START, FILL],
        "INSERT OVERWRITE {table} SELECT k, max(s) + 1 FROM {table} GROUP BY k",
    ),
    "delete": (
        [START, FILL],
        f"DELETE FROM {{table}} WHERE k IN (SELECT k FROM ({SUM}) WHERE s > 600) OR k = -1",
    ),
    "delete for each row": (
        [START, FILL],
        f"DELETE FROM {{table}} d WHERE EXISTS (SELECT 1 FROM t WHERE t.k = d.k) "
        f"AND d.k NOT IN (SELECT s FROM ({SUM}))",
    ),
    "delete for each row, beside a variable": (  # alone, its query finds the variable
        [START, FILL, "DECLARE OR REPLACE VARIABLE s BIGINT DEFAULT 735"],
        "DELETE FROM {table} WHERE EXISTS "
        "(SELECT 1 FROM (SELECT k AS key, sum(id) AS total FROM t GROUP BY k) WHERE total = s)",
    ),
    "delete by its own rows": (
        [START, FILL],
        "DELETE FROM {table} WHERE k IN (SELECT k FROM {table} GROUP BY k HAVING sum(s) > 1)",
    ),
    "update": (
        [START, FILL],
        f"UPDATE {{table}} SET s = s + 5 WHERE k < (SELECT count(*) FROM ({SUM}))",
    ),
}
WITH_QUERIES_IN_CONDITIONS = ("iceberg",)
"""Kinds of tables that have DELETE and UPDATE with a query in their condition."""


def rows_after(
    spark: SparkSession,
    root: str,
    names: dict[str, str],
    case: tuple[list[str], str],
    stored: bool,
) -> dict[str, Any]:
    """Run a case on a table of its own."""
    before, statement = case
    for text in before:
        spark.sql(text.format(**names))
    answer: dict[str, Any] = {}
    if stored:
        with DurableShuffle(spark, root, job="tables") as shuffle, shuffle.transparent():
            spark.sql(statement.format(**names))
        stages = shuffle.report().stages
        answer["ran"] = sum(stage.map_tasks_run for stage in stages)
        answer["stages"] = len(stages)
        answer["native"] = list(shuffle.report().native)
        answer["statement"] = statement.format(**names)
    else:
        spark.sql(statement.format(**names))
    rows = spark.table(names["table"]).collect()
    label = labels_of(spark, names)[-1]
    return {**answer, "label": label, "rows": sorted(tuple(row) for row in rows)}


def labels_of(spark: SparkSession, names: dict[str, str]) -> list[str | None]:
    """Return the labels of a table's commits, oldest first."""
    if names["kind"] == "delta":
        commits = spark.sql(f"DESCRIBE HISTORY {names['table']}").orderBy("version")
        return [row["userMetadata"] for row in commits.collect()]
    commits = spark.table(f"{names['table']}.snapshots").orderBy("committed_at")
    return [row["summary"].get("durable-shuffle") for row in commits.collect()]


def labels_of_appends(spark: SparkSession, root: str, names: dict[str, str]) -> list[str | None]:
    """Append to a table inside `transparent()`, again, and with a label of the user."""
    spark.sql(START.format(**names))
    for mine in ("", "", "mine"):
        if mine:
            spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", mine)
            spark.conf.set("spark.sql.iceberg.snapshot-property.durable-shuffle", mine)
        with DurableShuffle(spark, root, job="tables") as shuffle, shuffle.transparent():
            spark.sql(SUM).writeTo(names["table"]).append()
    spark.conf.unset("spark.databricks.delta.commitInfo.userMetadata")
    spark.conf.unset("spark.sql.iceberg.snapshot-property.durable-shuffle")
    return labels_of(spark, names)[-3:]


def main() -> None:
    """Run the wanted statements."""
    folder = Path(sys.argv[1])
    spark = session(SparkSession.builder.master("local[2]"), folder, sys.argv[2])
    spark.range(0, 100, 1, 2).selectExpr("id", "id % 7 AS k").createOrReplaceTempView("t")
    answer: dict[str, Any] = {"spark": spark.version}
    for number, wanted in enumerate(sys.argv[3:]):
        kind, _, only = wanted.partition(":")
        for name, case in STATEMENTS.items():
            if only not in (name, "*"):
                continue
            changes = case[1].startswith(("DELETE", "UPDATE"))
            if changes and kind not in WITH_QUERIES_IN_CONDITIONS:
                continue
            runs = answer[f"{kind}:{name}"] = {}
            for run in ("plain", "first", "second"):
                table = f"{run}{number}_{name.replace(' ', '_').replace(',', '')}"
                names = {"table": f"{PLACES[kind]}{table}", "kind": kind}
                runs[run] = rows_after(spark, str(folder / "root"), names, case, run != "plain")
    for kind in sorted({wanted.partition(":")[0] for wanted in sys.argv[3:]}):
        names = {"table": f"{PLACES[kind]}labels", "kind": kind}
        answer[f"{kind} labels"] = labels_of_appends(spark, str(folder / "root"), names)
    print(json.dumps(answer))
    spark.stop()


if __name__ == "__main__":
    main()
