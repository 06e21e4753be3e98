"""The code in docs/pipelines.md does what the page says."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def test_the_example_runs(tmp_path: Path) -> None:
    """It reads the inbox to its end: the totals are those of the orders."""
    orders = [{"order": n, "customer": f"c{n % 5}", "cents": n} for n in range(100)]
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    for part in range(4):
        lines = "".join(json.dumps(order) + "\n" for order in orders[part::4])
        (inbox / f"{part}.json").write_text(lines)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (inbox / "DONE").touch()
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "finished\n"), done.stdout + done.stderr
    expected: Counter[str] = Counter()
    for order in orders:
        expected[str(order["customer"])] += int(str(order["cents"]))
    found = [
        json.loads(line)
        for path in (tmp_path / "totals").glob("part-*.json")
        for line in path.read_text().splitlines()
    ]
    assert {row["customer"]: row["cents"] for row in found} == expected
    assert len(found) == len(expected)
