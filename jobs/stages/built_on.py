"""The stages that a stage was computed from, by incarnation.

A stage that is computed again may get other rows: ties, floating-point sums, an input for which
only `version=` vouches. What was built on its earlier rows does not fit the new ones, so DESCRIBE
records what a stage was built on, and a stage that was built on an earlier incarnation than the
newest one is not used again. A stage that is gone without a successor does no harm.
"""

import json
from collections.abc import Iterable, Mapping

from durable_shuffle.shuffle.log.job_state import JobState
from durable_shuffle.shuffle.log.stage import StageHandle

_KEY = "spark.durableShuffle.builtOn"
"""Key under which DESCRIBE keeps name and fingerprint -> incarnation, as JSON."""


def built_on(reads: Iterable[str], state: JobState) -> dict[str, str]:
    """Return what DESCRIBE records of the stages that are read; {} if there are none.

    Args:
        reads: name and fingerprint of each, with a hyphen between. Those that the job does not
            have are left out.
        state: of the job's log, with the incarnations that are read now.
    """
    now = {text: _incarnation(text, state) for text in reads}
    known = {text: incarnation for text, incarnation in sorted(now.items()) if incarnation}
    return {_KEY: json.dumps(known)} if known else {}


def superseded(stage: StageHandle, state: JobState) -> str:
    """Return which stage below was computed again since, for people; "" if none was."""
    for text, incarnation in _recorded(stage).items():
        if _incarnation(text, state) not in ("", incarnation):
            return f"built on an earlier computation of the stage {text}"
    return ""


def reads_missing(stage: StageHandle, missing: Iterable[str]) -> bool:
    """Return whether a stage was built on one of those that will be computed again."""
    return not _recorded(stage).keys().isdisjoint(missing)


def _recorded(stage: StageHandle) -> Mapping[str, str]:
    """Return what DESCRIBE records. What this library did not write matches no incarnation."""
    text = stage.describe.planning.get(_KEY, "{}")
    try:
        recorded = json.loads(text)
    except (ValueError, RecursionError):
        recorded = None
    if not isinstance(recorded, dict):
        return {"that its description does not name": ""}
    return {str(stage): str(incarnation) for stage, incarnation in recorded.items()}


def _incarnation(text: str, state: JobState) -> str:
    """Return the newest incarnation of a stage; "" if the job has none."""
    name, _, fingerprint = text.rpartition("-")
    path = state.stages.get((name, fingerprint))
    return "" if path is None else path.incarnation
