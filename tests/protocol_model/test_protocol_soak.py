"""The full runs: the largest spaces, and changes of the protocol that were found harmless.

The number of states is part of what is claimed: a change of a model that alters it must be meant.
The largest take minutes: `pytest tests/protocol_model -m soak -o faulthandler_timeout=0`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from protocol import batch_values as batch
from protocol.batch_model import BatchModel
from protocol.batch_values import BatchSetup, BatchState
from protocol.consumer_model import ConsumerModel
from protocol.consumer_values import ConsumerSetup, Release
from protocol.explorer import Exploration, explore
from protocol.log_model import LogModel
from protocol.log_values import LogSetup
from protocol.producer_model import ProducerModel
from protocol.producer_values import ProducerSetup, Repair
from protocol.release_model import ReleaseModel, ReleaseSetup

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

Visit = Callable[..., Exploration]

NO_CRASH = BatchSetup(attempt_crashes=0, driver_crashes=0, consumer_crashes=0)

FULL: dict[str, tuple[Any, int]] = {
    "producer race": (ProducerModel(ProducerSetup()), 325_164),
    "producer race, two of each fault": (
        ProducerModel(ProducerSetup(readers=1, crashes=2, timeouts=2, collections=2)),
        224_582,
    ),
    "producer repair": (
        ProducerModel(
            ProducerSetup(drivers=1, crashes=0, timeouts=0, corruptions=1, repair=Repair.SEAL_AGAIN)
        ),
        48_437,
    ),
    "release, four records": (ReleaseModel(ReleaseSetup(records=4)), 27_178),
    "three consumer attempts": (ConsumerModel(ConsumerSetup(attempts=3)), 86_200),
    "four records, two of each fault": (
        ConsumerModel(ConsumerSetup(records=4, crashes=2, timeouts=2, collections=2)),
        29_188,
    ),
    "three attempts and a cleaner": (
        ConsumerModel(ConsumerSetup(attempts=3, collections=1)),
        234_421,
    ),
    "three attempts with effects": (
        ConsumerModel(ConsumerSetup(attempts=3, crashes=2, effects=True)),
        216_332,
    ),
    "three attempts, views released": (
        ConsumerModel(ConsumerSetup(attempts=3, release=Release.BY_VIEW)),
        107_283,
    ),
    "three attempts of a log producer": (LogModel(LogSetup(attempts=3)), 408_871),
    "batch, no crash": (BatchModel(NO_CRASH), 172_009),
    "batch, all faults once": (BatchModel(BatchSetup()), 1_355_987),
    "batch, all faults once, equal data": (BatchModel(BatchSetup(contents=(0, 0))), 1_355_987),
    "batch, three attempts, crash and corruption": (
        BatchModel(BatchSetup(attempts=3, driver_crashes=0, consumer_crashes=0, aborts=0)),
        845_716,
    ),
    "batch, two readers, driver crash": (
        BatchModel(replace(NO_CRASH, driver_crashes=1, readers=2, consumer=False)),
        178_013,
    ),
    "batch, third attempt equals the first": (
        BatchModel(BatchSetup(attempts=3, attempt_crashes=0, aborts=0, contents=(0, 1, 0))),
        1_324_564,
    ),
    "batch, three attempts and ABORT": (
        BatchModel(replace(NO_CRASH, attempts=3, readers=0)),
        850_166,
    ),
}


@pytest.mark.parametrize(
    ("model", "states"), [pytest.param(*run, id=name) for name, run in FULL.items()]
)
def test_all_rules_together(model: Any, states: int, visit: Visit) -> None:
    """With all rules on, the largest spaces hold, and each run visits as many states as before."""
    result = visit(model)
    assert result.holds, result
    assert result.wanted > 0
    assert result.states == states


@pytest.mark.parametrize(
    ("change", "only"),
    [
        ({"cleaner_stops_at_commit": False, "only_fate_aborts": True}, None),
        ({"first_record_decides": False}, None),
        ({"walks_from_slot_0": False, "stops_at_own_abort": False}, batch.DATA_DAMAGE),
        ({"loser_commits": True, "seals_newest": True}, None),
        ({"driver_checks_cursors": True, "aborts": 0}, None),
        ({"tag_is_content": False, "contents": (0, 0), "aborts": 0}, None),
        ({"repair_passes_repairs": False, "attempts": 3, "aborts": 0}, None),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_batch_changes_that_do_no_harm(
    change: dict[str, Any], only: frozenset[str] | None, visit: Visit
) -> None:
    """These alternatives hold as well: they were rejected or left open for other reasons."""
    result = visit(BatchModel(replace(NO_CRASH, **change)), only)
    assert result.holds, result
    assert result.wanted > 0


def test_abort_between_two_commits_then_replace() -> None:
    """A stage with COMMIT, ABORT, COMMIT in its producer's log is repaired and accepted."""

    def reached(state: BatchState) -> bool:
        kinds = [record.kind for record in state.producer_log]
        return kinds == ["COMMIT", "ABORT", "COMMIT"] and state.outcome == "accepted"

    model = BatchModel(replace(NO_CRASH, attempts=3, consumer=False))
    result = explore(model, max_states=1_000_000, wanted=reached)
    assert result.holds
    assert result.wanted > 0
