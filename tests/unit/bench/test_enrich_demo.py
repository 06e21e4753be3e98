"""The enrichment demo as users start it, and that its verdict can be a bad one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from durable_shuffle.bench.enrich_demo.demo import EnrichDemoOptions, judge
from durable_shuffle.bench.enrich_demo.stream import ENRICHED, country_of, event
from durable_shuffle.recovery.job.phases import JobPhase, JobResult
from durable_shuffle.serialization.errors import InvalidInputError

STREAM = "durable_shuffle.bench.enrich_demo.stream"
ENDS = [JobResult(JobPhase.SUSPENDED), JobResult(JobPhase.FINISHED)]


@pytest.mark.soak
@pytest.mark.requirement("R-F46-11")
def test_suspended_killed_resumed_and_drained(tmp_path: Path, seed: int) -> None:
    """Real processes, two real kills, status 0, and every event once in the Parquet files."""
    figures = tmp_path / "enrich.json"
    arguments = ["--kills", "2", "--seed", str(seed), "--json", str(figures), "--work"]
    code = "from durable_shuffle.jobs.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "enrich", *arguments, str(tmp_path / "work")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(figures.read_text())
    assert found["passed"] is True
    assert (found["kills_fired"], found["lost"], found["doubled"]) == (2, 0, 0)
    assert found["ends"] == ["suspended", "finished"]
    assert found["restarts"] >= 2
    # the files again, not by the demo's own arithmetic
    events = []
    for path in (tmp_path / "work" / "out").glob("part-*.parquet"):
        events += pq.read_table(path).column("event").to_pylist()
    assert len(events) == len(set(events)) == found["events"]
    for producer in (0, 1):
        ours = sorted(e for e in events if e % 2 == producer)
        assert ours == list(range(producer, 2 * len(ours), 2))
    assert f"seed {seed}" in done.stdout


@pytest.mark.parametrize(
    ("numbers", "stored", "lost", "doubled"),
    [
        (list(range(10)), 10, 0, 0),
        ([0, 1, 2, 4, 5, 6, 7, 8, 9], 10, 1, 0),
        ([*range(10), 3, 3], 10, 0, 2),
        (list(range(8)), 10, 2, 0),
        (list(range(10)), 8, 0, 2),
        ([], 4, 4, 0),
    ],
)
def test_the_verdict_is_of_the_files(
    tmp_path: Path, numbers: list[int], stored: int, lost: int, doubled: int
) -> None:
    """What is missing is lost, what is too much is doubled."""
    rows = [{**event(n), "country": country_of(event(n)["user"])} for n in numbers]
    pq.write_table(pa.Table.from_pylist(rows, ENRICHED), tmp_path / "part-0.parquet")
    figures = judge(EnrichDemoOptions(0, 1), 0, ENDS, stored, tmp_path)
    assert (figures.lost, figures.doubled) == (lost, doubled)
    assert figures.passed is (lost == doubled == 0)
    fewer = judge(EnrichDemoOptions(1, 1), 0, ENDS, stored, tmp_path)
    assert not fewer.passed, "a kill that did not fire fails the demo"
    ends = judge(EnrichDemoOptions(0, 1), 0, [ENDS[0], ENDS[0]], stored, tmp_path)
    assert not ends.passed


def test_a_wrong_country_is_found(tmp_path: Path) -> None:
    """It is one event too few and one too many."""
    rows = [{**event(0), "country": "XX"}]
    pq.write_table(pa.Table.from_pylist(rows, ENRICHED), tmp_path / "part-0.parquet")
    figures = judge(EnrichDemoOptions(0, 1), 0, ENDS, 1, tmp_path)
    assert (figures.lost, figures.doubled) == (1, 1)
    with pytest.raises(InvalidInputError, match="kills"):
        EnrichDemoOptions(-1, 1)


@pytest.mark.soak
def test_ctrl_c_suspends_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """The job as users start it, twice, interrupted with all its processes: every event once."""
    out = tmp_path / "out"

    def files() -> int:
        return len(list(out.glob("part-*.parquet")))

    for _ in range(2):
        before = files()
        job = subprocess.Popen(
            [
                sys.executable,
                "-m",
                STREAM,
                tmp_path / "data",
                out,
            ],
            stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            deadline = time.monotonic() + 120
            while files() == before:
                assert job.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            os.killpg(job.pid, signal.SIGINT)
            said, _ = job.communicate(timeout=120)
        finally:
            job.kill()
        assert (job.returncode, said) == (0, b"suspended\n")
    events = []
    for path in out.glob("part-*.parquet"):
        events += pq.read_table(path).column("event").to_pylist()
    assert len(events) == len(set(events)) > 0
