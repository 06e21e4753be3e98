"""A driver that is SIGKILLed in its map stage, and the next one, which has other cores."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

EXPECTED = sorted((i % 7, i) for i in range(40))


def killed_and_resumed(
    programs: Any, root: str, folder: Path, committed: Callable[[str], set[int]]
) -> dict[str, Any]:
    """Kill a driver when 3 of 4 producers are committed; check and return the next one's stage.

    Args:
        committed: returns the producers that are committed below a root.
    """
    source, gate = folder / "source", folder / "gate"
    (gate / "runs").mkdir(parents=True)
    source.mkdir()
    for i in range(8):
        part = [(n % 7, n) for n in range(i * 5, i * 5 + 5)]
        table = pa.table({"k": [k for k, _ in part], "v": [v for _, v in part]})
        pq.write_table(table, source / f"part-{i}.parquet")
    first = programs.start("gated_driver", "local[4]", root, source, gate)
    once = dict.fromkeys("0123", "run\n")
    deadline = time.monotonic() + 300
    while committed(root) != {0, 1, 2} or _runs_in(gate) != once:
        assert first.poll() is None, "the driver ended early"
        assert time.monotonic() < deadline, "the moment never came"
        time.sleep(0.02)
    programs.kill(first)
    assert _runs_in(gate) == once
    (gate / "open").touch()
    answer = programs.run("gated_driver", "local[1]", root, source, gate)
    assert answer["cores"] == 1
    assert [tuple(row) for row in answer["rows"]] == EXPECTED
    assert _runs_in(gate) == {**once, "3": "run\nrun\n"}
    assert answer["generation"] == 2
    (stage,) = answer["stages"]
    assert (stage["action"], stage["map_tasks"], stage["map_tasks_run"]) == ("resumed", 4, 1)
    found: dict[str, Any] = stage
    return found


def _runs_in(folder: Path) -> dict[str, str]:
    """Producer -> one line for each of its runs."""
    return {path.name: path.read_text() for path in (folder / "runs").iterdir()}
