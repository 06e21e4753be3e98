"""Each row of docs/internals/identity.md in both directions: a relevant change misses, others hit.

If a stage is reused, its rows are compared with Spark's own. `support/identity_matrix.py` has the
cases.
"""

from pathlib import Path

import pytest
from identity_judge import Case, World, judge
from identity_matrix import CASES
from pyspark.sql import SparkSession
from spark_since import SINCE_4

from durable_shuffle import DurableShuffle

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
VALUES = "values that Python functions use"
SOURCES = "table, options and filters of other sources"
SPECIAL = "`'now'`, `'today'`, `'tomorrow'`, `'yesterday'` as a date or a timestamp"
INCOMPARABLE = "Python functions that use locks, open files or connections"
HIDDEN = (
    "data that was cached under other settings, or from a table whose version at that time is not "
    "known"
)
ON_CONNECT = (
    "on Spark Connect: temporary views, cached frames, variables and functions of the session, "
    "files that SQL text names by path, tables in CSV and the like, and operators that are not on "
    "the library's list"
)
LINES = "the lines at which a function stands"
RDDS = "RDDs over files read by Hadoop, shuffles or checkpoints"
ELSEWHERE = [
    (
        "names and ids that Spark generates",
        "spark/test_connect",
        "plans_that_differ_are_told_apart",
    ),
    (
        "files of a partitioned table",
        "spark/test_inputs_in_time",
        "files_of_other_partitions_do_not_count",
    ),
    ("rows of the driver", "spark/test_inputs_told_apart", "rows_of_the_driver_are_recognised"),
    ("tables and views", "spark/test_connect", "plans_that_differ_are_told_apart"),
    (VALUES, "unit/jobs/test_used_values", "values_of_the_users_modules_count"),
    (VALUES, "spark/test_identity_functions", "broadcast_in_a_function_counts"),
    ("your modules", "unit/jobs/test_function_identity", "source_of_modules_counts"),
    ("your modules", "spark/test_workers_code", "module_edited_and_loaded_anew"),
    (
        "installed packages",
        "unit/jobs/test_function_identity",
        "distributions_count_by_their_record",
    ),
    (
        "jars other than Spark's own",
        "spark/test_identity_functions",
        "jars_that_are_not_sparks_count",
    ),
    (
        "number of partitions and keys",
        "spark/test_inputs_in_time",
        "keys_that_are_functions_and_slices",
    ),
    (SOURCES, "spark/test_inputs_told_apart", "jdbc_tables_and_pushed_filters"),
    (SOURCES, "spark/test_inputs_told_apart", "jdbc_queries_with_pushed_aggregates"),
    (
        "query id and batch id of a micro-batch",
        "spark/test_inputs_in_time",
        "micro_batches_are_told_apart",
    ),
    (
        "names and ids that Spark generates",
        "spark/test_queries_recognised",
        "second_run_runs_no_producer",
    ),
    (
        "names and ids that Spark generates",
        "spark/test_plan_identity",
        "features_of_spark_ml_are_recognised",
    ),
    (
        "code that no function reaches",
        "unit/jobs/test_function_identity",
        "place_in_the_file_does_not_count",
    ),
    ("code that no function reaches", "unit/jobs/test_used_values", "other_values_do_not_count"),
    (LINES, "unit/jobs/test_function_places", "what_no_worker_sees_does_not"),
    (LINES, "unit/jobs/test_function_places", "what_a_worker_sees_counts"),
    (SPECIAL, "spark/test_inputs_in_time", "special_dates_have_another_value_in_another_run"),
    (
        "Python functions that read the clock, the environment, files, services or random numbers",
        "unit/jobs/test_used_values",
        "reads_from_outside_are_named",
    ),
    (
        "time zones in Python functions",
        "unit/jobs/test_outside_reads",
        "zone_counts_where_code_asks_for_it",
    ),
    (INCOMPARABLE, "unit/jobs/test_used_values", "value_that_cannot_be_compared_is_named"),
    (INCOMPARABLE, "unit/jobs/test_function_identity", "lock_is_named"),
    (
        "`reflect()`, and functions of jars",
        "spark/test_inputs_in_time",
        "special_dates_have_another_value_in_another_run",
    ),
    ("cached data", "spark/test_inputs_told_apart", "cached_frames_count_by_their_plans"),
    ("cached data", "spark/test_identity_inputs", "cached_rows_are_their_plan"),
    (HIDDEN, "spark/test_identity_inputs", "what_a_cache_hides_is_unresolved"),
    ("Delta Lake and Iceberg tables", "spark/test_tables", "histories"),
    (
        "checkpointed data",
        "spark/test_inputs_told_apart",
        "frames_that_nothing_tells_apart_are_refused",
    ),
    (RDDS, "spark/test_inputs_told_apart", "object_stages"),
    (ON_CONNECT, "spark/test_connect", "what_the_server_names_is_recognised"),
    ("code given to `consume`", "spark/test_consume", "other_code_under_the_same_name_is_refused"),
]
"""Rows that other tests cover, alone or in addition to a case: row, file, test."""


WITH_NEWER_PYSPARK = ("a value", "version", "option", "filter", "data source")
"""Cases of Arrow tables and of data sources in Python."""


def rows_of_the_page() -> list[str]:
    """Return the first cells of the page's tables."""
    lines = (ROOT / "docs/internals/identity.md").read_text().splitlines()
    cells = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    return [cell for cell in cells if cell != "what" and not cell.startswith("---")]


def test_the_page_and_the_cases_have_the_same_rows() -> None:
    """Every row of the page has a test, and every case is on the page."""
    page = rows_of_the_page()
    assert len(set(page)) == len(page)
    assert set(page) == {case.row for case in CASES} | {row for row, _, _ in ELSEWHERE}
    for _, file, name in ELSEWHERE:
        assert f"def test_{name}(" in (ROOT / f"tests/{file}.py").read_text()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            marks=[SINCE_4] if case.what in WITH_NEWER_PYSPARK else [],
            id=f"{case.row}: {case.what}",
        )
        for case in CASES
    ],
)
def test_classic(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    """Another driver finds the same stage, does not find the changed one, and rows are Spark's."""

    def drive(session: SparkSession, version: str | None) -> DurableShuffle:
        return DurableShuffle(session, str(tmp_path / "root"), job="matrix", version=version)

    assert judge(World(spark, tmp_path), case, drive, connect=False) == []
