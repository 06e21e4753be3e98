"""Counts map tasks of Spark's own shuffle in its event log. Pure: lines in, numbers out."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

_GROUP = "spark.jobGroup.id"


def map_tasks_by_group(lines: Iterable[str]) -> Counter[str]:
    """Return job group -> tasks of Spark's own map stages that finished well, repeats included.

    Args:
        lines: one event log, oldest first; a last line that was cut short is left out.
    """
    group_of_stage: dict[int, str] = {}
    counts: Counter[str] = Counter()
    for line in lines:
        if not line.endswith("\n"):
            break
        event = json.loads(line)
        if event["Event"] == "SparkListenerStageSubmitted":
            properties = event.get("Properties") or {}
            group_of_stage[event["Stage Info"]["Stage ID"]] = properties.get(_GROUP, "")
        elif _is_finished_map_task(event):
            counts[group_of_stage.get(event["Stage ID"], "")] += 1
    return counts


def _is_finished_map_task(event: dict[str, Any]) -> bool:
    if event["Event"] != "SparkListenerTaskEnd" or event["Task Type"] != "ShuffleMapTask":
        return False
    return bool(event["Task End Reason"]["Reason"] == "Success")
