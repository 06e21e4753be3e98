"""Counting map tasks in an event log, against lines written by hand."""

import json
from typing import Any

from durable_shuffle.bench.cluster.event_log import map_tasks_by_group


def _submitted(stage: int, group: str | None) -> dict[str, Any]:
    properties = {} if group is None else {"spark.jobGroup.id": group}
    return {
        "Event": "SparkListenerStageSubmitted",
        "Stage Info": {"Stage ID": stage},
        "Properties": properties,
    }


def _ended(stage: int, kind: str = "ShuffleMapTask", reason: str = "Success") -> dict[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage,
        "Task Type": kind,
        "Task End Reason": {"Reason": reason},
    }


def test_count_takes_only_finished_map_tasks_and_keeps_groups_apart() -> None:
    """Result tasks, failed tasks and other groups' tasks do not count; repeats do."""
    events = [
        {"Event": "SparkListenerApplicationStart"},
        _submitted(1, "a"),
        _ended(1),
        _ended(1),
        _ended(1, reason="ExecutorLostFailure"),
        _submitted(2, "a"),
        _ended(2, kind="ResultTask"),
        _submitted(1, "a"),
        _ended(1),
        _submitted(3, "b"),
        _ended(3),
        _submitted(4, None),
        _ended(4),
    ]
    lines = [json.dumps(e) + "\n" for e in events]
    assert map_tasks_by_group(lines) == {"a": 3, "b": 1, "": 1}


def test_count_of_a_killed_drivers_log_leaves_out_the_torn_line() -> None:
    """A log that a SIGKILL cut in the middle of a line counts up to there."""
    lines = [json.dumps(e) + "\n" for e in (_submitted(1, "a"), _ended(1), _ended(1))]
    lines[-1] = lines[-1][:25]
    assert map_tasks_by_group(lines) == {"a": 1}
