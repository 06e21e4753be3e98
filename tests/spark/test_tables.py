"""Delta Lake and Apache Iceberg tables with their real jars, in a separate process.

Both formats exist for older versions of PySpark only, so the program `tables_driver.py` runs on
such a one, which `scripts/table_formats.py` fetches.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import table_session
from table_cases import History
from table_histories import HISTORIES, SAMPLE

from durable_shuffle.jobs.transparent.labels import label_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
SHORT = [h.begun(SAMPLE[h.name]) for h in HISTORIES if h.name in SAMPLE]
LONG = [h for h in HISTORIES if SAMPLE.get(h.name, 0) is not None]


def rows(histories: list[History]) -> list[tuple[str, str]]:
    """Return history and name of each row of the matrix."""
    return [(history.name, row) for history in histories for row in history.rows()]


def answer_of(program: str, programs: Any, folder: Path, *more: str) -> dict[str, Any]:
    """Run a program that reads tables of both formats, and return its answer."""
    minor, jars, environment = table_session.found()
    answer: dict[str, Any] = programs.run(program, folder, jars, *more, env=environment)
    assert answer["spark"].startswith(minor)
    return answer


@pytest.fixture(scope="module")
def seen(programs: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program found wrong in the sample, by row."""
    names = [f"{name}:{steps}" if steps else name for name, steps in SAMPLE.items()]
    return answer_of("tables_driver", programs, tmp_path_factory.mktemp("tables"), *names)


@pytest.fixture(scope="module")
def seen_in_the_rest(programs: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program found wrong in the other histories, by row."""
    names = [history.name for history in LONG]
    return answer_of("tables_driver", programs, tmp_path_factory.mktemp("tables"), *names)


def test_there_are_enough_rows() -> None:
    """The matrix of both formats covers operations in both directions."""
    decisions = [d for h in HISTORIES for step in h.steps for d in step.found.values()]
    assert len(decisions) >= 230
    assert min(decisions.count("computed"), decisions.count("reused")) >= 100


@pytest.mark.parametrize(("history", "row"), rows(SHORT))
def test_histories(seen: dict[str, Any], history: str, row: str) -> None:
    """After each operation a read finds its stage if its rows are the same, and Spark's rows."""
    assert seen[history][row] == []


@pytest.mark.soak
@pytest.mark.parametrize(("history", "row"), rows(LONG))
def test_long_histories(seen_in_the_rest: dict[str, Any], history: str, row: str) -> None:
    """The same where names, types or files stay as they were."""
    assert seen_in_the_rest[history][row] == []


@pytest.mark.soak
def test_tables_on_connect(programs: Any, tmp_path: Path) -> None:
    """The provider of each table is asked, as Delta prints as Parquet there."""
    pytest.importorskip("grpc")
    found = answer_of("tables_connect", programs, tmp_path)["found"]
    assert len(found) == 13
    assert {step: wrong for step, wrong in found.items() if wrong} == {}


SOME = ("delta:merge", "delta:own rows", "iceberg:behind its own rows", "iceberg:update")
CHANGES = (
    *("iceberg:delete", "iceberg:delete by its own rows", "iceberg:update"),
    *("iceberg:delete for each row", "iceberg:delete for each row, beside a variable"),
)


@pytest.mark.soak
@pytest.mark.parametrize(
    "wanted", [SOME, CHANGES, ("delta:*", "iceberg:*")], ids=["some", "changes", "all"]
)
def test_statements_that_write(programs: Any, tmp_path: Path, wanted: tuple[str, ...]) -> None:
    """Tables are as after plain Spark; the query's exchanges are stored and found again."""
    answer = answer_of("statements_driver", programs, tmp_path, *wanted)
    del answer["spark"]
    for kind in {name.partition(":")[0] for name in wanted}:
        first, second, own = answer.pop(f"{kind} labels")
        assert json.loads(first)["job"] == "tables"
        assert (second, own) == (first, "mine")  # one application, one command
    assert len(answer) >= len(wanted)
    for name, runs in answer.items():
        rows = [run["rows"] for run in runs.values()]
        assert runs["plain"]["label"] is None, name
        for run in (runs["first"], runs["second"]):
            application = json.loads(run["label"])["application"]
            assert run["label"] == label_of("tables", application, run["statement"])
        assert rows[0], name
        assert rows == [rows[0]] * 3, name
        stored = [runs[run] for run in ("first", "second")]
        if "for each row" in name:
            assert all("DeleteFromTable" in run["native"][0] for run in stored), name
            continue
        assert all(run["stages"] > 0 for run in stored), name
        left = [text for run in stored for text in run["native"]]
        assert all(text.startswith("subquery: its rows go to the driver") for text in left), name
        if "own rows" not in name:  # it reads a table that the first run has changed
            assert stored[1]["ran"] == 0, name
