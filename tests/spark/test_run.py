"""`durable-shuffle run` with real drivers that die: what was stored is not computed again."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

PROGRAMS = Path(__file__).parent / "programs"
RUN = [sys.executable, "-m", "durable_shuffle.jobs.cli", "run", "--first-delay", "0.1"]


def run(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with more in its environment."""
    environment = {
        **os.environ,
        **more,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(PROGRAMS.parents[2] / "src"),
    }
    return subprocess.run(
        [*RUN, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_killed_driver_is_started_again_and_goes_on(tmp_path: Path) -> None:
    """After a SIGKILL of the driver, the second attempt runs only the producer that was missing."""
    (tmp_path / "runs").mkdir()
    done = run("--", sys.executable, PROGRAMS / "run_driver.py", tmp_path / "data", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "killed").exists()
    found = json.loads((tmp_path / "rows").read_text())
    assert Counter(map(tuple, found["rows"])) == Counter((n % 7, n) for n in range(60))
    report = found["report"]
    assert (report["action"], report["map_tasks_reused"], report["map_tasks_run"]) == (
        *("resumed", 5),
        1,
    )
    runs = {p.name: len(p.read_text().splitlines()) for p in (tmp_path / "runs").iterdir()}
    assert runs == {"0": 1, "1": 1, "2": 1, "3": 2, "4": 1, "5": 1}
    assert "5 of 6 map tasks stored; again in" in done.stderr


@pytest.mark.soak
def test_an_unchanged_program_goes_on_where_it_failed(tmp_path: Path) -> None:
    """With --transparent spark-submit's first attempt stores its query; the second reads it."""
    (tmp_path / "in" / "words").mkdir(parents=True)
    (tmp_path / "in" / "broken").touch()
    lengths = pa.table({"length": [len(word) for word in ["the", "quick", "brown", "fox"]] * 25})
    pq.write_table(lengths, tmp_path / "in" / "words" / "a.parquet")
    out, root = tmp_path / "out", tmp_path / "data"
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    program = PROGRAMS / "plain_driver.py"
    command = (submit, "--conf", "spark.sql.shuffle.partitions=3", program, tmp_path / "in", out)
    done = run("--transparent", "--url", root, *command)
    assert done.returncode == 0, done.stderr
    expected = [(3, 50), (5, 50)]
    assert f"{expected} __main__ True" in done.stdout
    rows = duckdb.sql(f"select length, words from '{out}/*.parquet' order by 1").fetchall()
    assert rows == expected
    assert "attempt 1 ended with exit code 1 (OSError)" in done.stderr
    stages = list((root / "plain_driver").glob("query-*"))
    assert len(stages) == 1, "the second attempt must find the stage of the first"


def test_a_file_of_statements_goes_on_where_it_failed(tmp_path: Path) -> None:
    """A wrong statement ends it; the next run finds what was stored before."""
    script, out, root = tmp_path / "nightly.sql", tmp_path / "out", tmp_path / "data"
    text = f"""-- sums; of keys
        INSERT OVERWRITE DIRECTORY '{out}' USING parquet
            SELECT id % 3 AS k, sum(id) AS s FROM range(0, 10, 1, 2) GROUP BY 1;
        SELECT ';', NULL, count(*) FROM range(9);
        SELECT """
    stages = []
    for last, code in (("nothing", 4), ("1", 0)):
        script.write_text(text + last)
        done = run("--transparent", "--url", root, script)
        assert done.returncode == code, done.stderr
        assert done.stdout == ";\tNULL\t9\n" + ("" if code else "1\n")
        stages.append({path.name for path in (root / "nightly").glob("query-*/*/*")})
    assert "UNRESOLVED_COLUMN" not in done.stderr
    assert stages[0] == stages[1]
    assert stages[0]
    rows = duckdb.sql(f"select k, s from '{out}/*.parquet' order by 1").fetchall()
    assert rows == [(0, 18), (1, 12), (2, 15)]


@pytest.mark.soak
def test_the_second_driver_loads_classes_from_the_archive_of_the_first(tmp_path: Path) -> None:
    """Thousands of them, as its JVM says; stdout has no word of that."""
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"length": [3, 5, 5]}), tmp_path / "in" / "words")
    archive, said = tmp_path / "classes.jsa", []
    for turn in ("first", "second"):
        program = (sys.executable, PROGRAMS / "plain_driver.py", tmp_path / "in", tmp_path / turn)
        log = tmp_path / f"{turn}.log"
        done = run(
            *("--class-archive", archive, "--", *program),
            JAVA_TOOL_OPTIONS="",
            SPARK_SUBMIT_OPTS=f"-Xlog:class+load:file={log}",
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "[(3, 1), (5, 2)] __main__ True\n"
        assert archive.exists() is ("no class archive was written" not in done.stderr)
        if not archive.exists():
            pytest.skip("this Java has no archive of its own")
        said.append(log.read_text().count("shared objects file (top)"))
    assert said[0] == 0
    assert said[1] > 5000
