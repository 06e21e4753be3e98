"""A driver of two streaming queries is killed with SIGKILL in every phase of a micro-batch.

A gate (`programs/gates`) stops the process at a given storage call. DuckDB reads the output from
the files that the file sink's own log names.
"""

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pytest

pytestmark = pytest.mark.spark

ROWS = 60
WRITER = ["open", "segment", "record"]
READER = ["rows", "cursor"]
HANG_SECONDS = 600
GATES = Path(__file__).parent / "programs" / "gates"
SOURCE = Path(__file__).parents[2] / "src"


def live(programs: Any, folder: Path, life: int, gate: str) -> None:
    """Run once: to the end without a gate, or to the gate, and kill it there."""
    (folder / "gate").write_text(gate)
    reached = folder / "reached"
    reached.unlink(missing_ok=True)
    env = {"DURABLE_SHUFFLE_GATE": str(folder), "PYTHONPATH": f"{GATES}:{SOURCE}"}
    process = programs.start("stream_driver", folder, life, ROWS, env=env)
    if not gate:
        assert programs.answer(process) == {"life": life}
        process.wait()
        return
    deadline = time.monotonic() + HANG_SECONDS
    while not reached.exists():
        assert process.poll() is None, f"the driver ended without reaching {gate!r}"
        assert time.monotonic() < deadline, f"nobody reached {gate!r}"
        time.sleep(0.05)
    programs.kill(process)


def published(folder: Path) -> Counter[int]:
    """How often each number occurs in the files that count."""
    names = {
        json.loads(line)["path"].removeprefix("file://")
        for entry in (folder / "out" / "_spark_metadata").iterdir()
        if not entry.name.startswith(".")
        for line in entry.read_text().splitlines()[1:]
    }
    found = duckdb.sql("SELECT id FROM read_parquet($names)", params={"names": sorted(names)})
    return Counter(row[0] for row in found.fetchall())


def run_kills(programs: Any, folder: Path, gates: list[str]) -> None:
    """Run once per gate and kill it there, then run once to the end."""
    folder.mkdir()
    for life, gate in enumerate([*gates, ""]):
        live(programs, folder, life, gate)
    assert published(folder) == Counter(range((len(gates) + 1) * ROWS)), gates


@pytest.mark.requirement("R-F135-1")
@pytest.mark.requirement("R-F135-28")
def test_a_killed_driver_loses_and_doubles_nothing(
    programs: Any, tmp_path: Path, seed: int
) -> None:
    """One kill while it writes and one while it reads, in a phase that the seed chooses."""
    draw = random.Random(seed)
    gates = [f"{draw.choice(side)} {draw.choice(['before', 'after'])}" for side in (WRITER, READER)]
    print(seed, gates)
    run_kills(programs, tmp_path / "f", gates)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_phase(programs: Any, tmp_path: Path) -> None:
    """Before and after each call, one after the other."""
    gates = [f"{phase} {when}" for phase in WRITER + READER for when in ("before", "after")]
    run_kills(programs, tmp_path / "f", gates)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_two_hundred_kills(programs: Any, tmp_path: Path, seed: int) -> None:
    """Two hundred runs of one pair of queries, each killed in a phase that the seed chooses."""
    draw = random.Random(seed)
    phases = [f"{p} {when}" for p in WRITER + READER for when in ("before", "after")]
    run_kills(programs, tmp_path / "f", [draw.choice(phases) for _ in range(200)])
