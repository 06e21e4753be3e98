"""SEAL: what counts in a stage, decided once. Only behind it may readers read.

It names one COMMIT per producer and the index object that was made from them.
"""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    IncompatibleError,
    NotReadyError,
)
from durable_shuffle.shuffle.log.producer_log import Committed
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, stage_log, stage_released
from durable_shuffle.shuffle.log.stage_fold import StageState
from durable_shuffle.shuffle.seal.index import build_index, content_tag


def seal_stage(
    stage: StageHandle,
    commits: Mapping[int, Committed],
    *,
    producers: int,
    generation: int,
    record_id: str,
) -> Seal:
    """Write the index object and win SEAL, or return the seal that stands: there is only one.

    Args:
        commits: the COMMIT that counts of each producer, read from its slot.
        record_id: random id, also the index object's name.

    Raises:
        NotReadyError: a producer is missing; names the first.
        NotFoundError: the stage was released meanwhile.
    """
    missing = [p for p in range(producers) if p not in commits]
    if missing:
        raise NotReadyError(
            f"{len(missing)} of {producers} producers have not committed: first={missing[0]} "
            f"stage={stage.path.prefix!r}"
        )
    ordered = [commits[p] for p in range(producers)]
    for p, c in enumerate(ordered):
        if c.commit.producers != producers or c.commit.producer != p:
            raise IncompatibleError(
                f"a COMMIT is of another plan: producer={p} expected M={producers}, found "
                f"producer={c.commit.producer} M={c.commit.producers} stage={stage.path.prefix!r}"
            )
    state = read_state(stage)
    if state.release is not None:
        raise stage_released(stage, state.release)
    if state.seal is not None:
        return state.seal
    key = stage.path.index_key(record_id)
    index = build_index([c.commit for c in ordered], stage.describe.partitions, key=key)
    stage.storage.put(key, [index])
    seal = Seal(
        record_id=record_id,
        generation=generation,
        producers=producers,
        index=record_id,
        index_bytes=len(index),
        commit_slots=np.array([c.slot for c in ordered], dtype="<u4").tobytes(),
        attempts=bytes.fromhex("".join(c.commit.record_id for c in ordered)),
        content_tags=b"".join(content_tag(c.commit) for c in ordered),
        rows=sum(c.commit.rows for c in ordered),
        data_bytes=sum(s.length for c in ordered for s in c.commit.segments),
        memory_bytes=sum(c.commit.memory_bytes for c in ordered),
    )

    def unless_decided(state: StageState) -> Seal | None:
        if state.over is None and state.seal is None:
            return seal
        # ours was never named and never will be; nobody else would find it to delete it
        with suppress(DurableShuffleError):  # then it costs space, not correctness
            stage.storage.delete([key])
        if state.over is not None:
            raise stage_released(stage, state.over)
        return None

    state, _ = stage_log(stage).decide(state, unless_decided)
    assert state.seal is not None  # else `unless_decided` raised
    return state.seal
