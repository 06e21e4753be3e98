"""Every row of docs/identity.md in both directions: what matters misses, what does not is found.

The rows of what is found are compared with Spark's own. Cases are in `support/identity_matrix.py`.
"""

from pathlib import Path

import pytest
from identity_matrix import CASES, Case, World, judge
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "modules of your own": (
        "tests/unit/jobs/test_function_identity.py",
        "test_source_of_modules_counts",
    ),
    "any plan on Spark Connect": (
        "tests/spark/test_connect.py",
        "test_explain_says_hit_miss_and_why",
    ),
}
"""Rows that another test carries."""


def rows_of_the_page() -> list[str]:
    """First cells of the tables of the page."""
    lines = (ROOT / "docs/identity.md").read_text().splitlines()
    cells = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    return [cell for cell in cells if cell != "what" and not cell.startswith("---")]


def test_the_page_and_the_cases_have_the_same_rows() -> None:
    """No row of the page without a test, no case that the page does not tell."""
    page = rows_of_the_page()
    assert len(set(page)) == len(page)
    assert set(page) == {case.row for case in CASES} | set(ELSEWHERE)
    for file, name in ELSEWHERE.values():
        assert f"def {name}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row}: {case.what}")
def test_classic(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    """The same is found, the other is not, and the rows are Spark's."""
    assert judge(World(spark, tmp_path), case, str(tmp_path / "root"), connect=False) == []
