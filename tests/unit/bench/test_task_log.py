"""The gate: no more tasks end than the schedule says, until the fault has happened."""

import threading
from pathlib import Path

from durable_shuffle.bench.workloads.task_log import (
    TaskLog,
    ended,
    open_gate,
    prepare,
    read_lines,
)

TASKS, AFTER = 8, 3


def test_no_more_than_the_schedule_says_end_before_the_fault(tmp_path: Path) -> None:
    """Eight tasks end at the same time; three get through, the others when the gate opens."""
    prepare(tmp_path, 1, ("map", AFTER))
    logs = [TaskLog.begin(tmp_path, "map", n, host=n) for n in range(TASKS)]
    together = threading.Barrier(TASKS)

    def end(log: TaskLog) -> None:
        together.wait()
        log.end()

    threads = [threading.Thread(target=end, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    while sum(line["event"] == "held" for line in read_lines(tmp_path)) < TASKS - AFTER:
        assert ended(tmp_path, "map") <= AFTER
    assert ended(tmp_path, "map") == AFTER
    TaskLog.begin(tmp_path, "reduce", 0, host=0).end()  # another phase has no gate
    open_gate(tmp_path)
    for thread in threads:
        thread.join()
    assert ended(tmp_path, "map") == TASKS
