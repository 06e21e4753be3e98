"""The code in docs/views.md does what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from durable_shuffle.shuffle.clock import RandomIds
from durable_shuffle.shuffle.job_log import JobLog
from durable_shuffle.shuffle.local_storage import LocalStorage
from durable_shuffle.shuffle.records import StageUse
from durable_shuffle.shuffle.testing.small_stage import new_stage, seal, write

PAGE = Path(__file__).parents[2] / "docs" / "views.md"


def test_the_example_runs_and_runs_out(tmp_path: Path) -> None:
    """Each run loads what no run before it acknowledged: everything, then nothing."""
    ids, storage = RandomIds(), LocalStorage(tmp_path / "shuffle-data")
    rows = pa.record_batch([[1, 2, 3]], names=["k"])
    stage = new_stage(storage, ids, rows.schema, partitions=1, job="nightly")
    write(stage, 0, [(rows, np.zeros(3, np.uint16))], ids.new_id())
    seal(stage, 1, ids.new_id())
    path = stage.path
    log = JobLog.claim(storage, "nightly", ids.new_id())
    log.append(StageUse(ids.new_id(), 1, path.name, path.fingerprint, path.incarnation))

    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = tmp_path / "example.py"
    example = example.replace('"repartition"', repr(path.name))
    script.write_text(f"load = lambda batch: print(batch.column(0).to_pylist())\n{example}")
    for expected in ("[1, 2, 3]\n", ""):
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, expected), done.stderr
