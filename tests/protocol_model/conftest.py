"""Explorations of protocol models, each done once per session however many tests ask for it."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from protocol.batch_model import (
    BatchModel,
    finished,
    out_of_attempts,
)
from protocol.consumer_model import ConsumerModel
from protocol.explorer import Exploration, explore
from protocol.log_model import LogModel, ended
from protocol.log_model import out_of_attempts as none_left
from protocol.producer_model import ProducerModel
from protocol.purge_model import PurgeModel
from protocol.release_model import ReleaseModel

AnyModel: TypeAlias = (
    BatchModel | ConsumerModel | LogModel | ProducerModel | PurgeModel | ReleaseModel
)
Explore: TypeAlias = Callable[..., Exploration]

MAX_STATES = 3_000_000
"""Above the largest space explored (1.4 million); a run that meets it counts as incomplete."""


def _visit(model: AnyModel, only: frozenset[str] | None) -> Exploration:
    """Explore `model`; `wanted` counts the states in which the work was done."""
    if isinstance(model, BatchModel):
        return explore(
            model,
            max_states=MAX_STATES,
            only=only,
            wanted=lambda state: state.outcome == "accepted",
            can_always_finish=finished,
            excuse=out_of_attempts,
        )
    if isinstance(model, ConsumerModel):
        return explore(
            model,
            max_states=MAX_STATES,
            only=only,
            wanted=lambda state: any(a.phase == "done" for a in state.attempts),
        )
    if isinstance(model, LogModel):
        return explore(
            model,
            max_states=MAX_STATES,
            only=only,
            wanted=ended,
            can_always_finish=ended,
            excuse=none_left,
        )
    if isinstance(model, ProducerModel):
        return explore(
            model,
            max_states=MAX_STATES,
            only=only,
            wanted=lambda state: all(r.phase == "done" for r in state.readers),
        )
    if isinstance(model, PurgeModel):
        return explore(
            model,
            max_states=MAX_STATES,
            only=only,
            wanted=lambda state: state.phase == "finished" and state.landed,
        )
    records = model.setup.records
    return explore(
        model,
        max_states=MAX_STATES,
        only=only,
        wanted=lambda state: all(c.read == records for c in state.consumers if c.registered),
    )


@pytest.fixture(scope="session")
def visit() -> Explore:
    """Return a function (model, only=None) -> Exploration that remembers what it has explored."""
    done: dict[tuple[AnyModel, frozenset[str] | None], Exploration] = {}

    def visit_once(model: AnyModel, only: frozenset[str] | None = None) -> Exploration:
        if (model, only) not in done:
            done[model, only] = _visit(model, only)
        return done[model, only]

    return visit_once
