"""One consumer task: it holds its log and moves all its inputs forward in one record.

Strategy: the task owns the log once it has won OPEN. From then on every change is one record over
all inputs, so positions, published outputs and state commit together or not at all. An effect
outside the storage has a token that is the same at every try. It is performed only after its record
is in the log. The next view repeats effects that may not have happened, before it reads anything.

It must not read data: views do that.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    DurableShuffleError,
    FencedError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import HeldLog
from durable_shuffle.shuffle.consume.resume_set import InputKey, cursor
from durable_shuffle.shuffle.log.consumer_records import (
    Ack,
    Committed,
    ConsumerRecord,
    Ending,
    Finished,
    InputCursor,
    OutputRef,
    PendingEffect,
    Prepared,
    Reserve,
    State,
    StateRef,
    ViewReleased,
)
from durable_shuffle.shuffle.log.layout import ConsumerPath
from durable_shuffle.shuffle.read.position import (
    Position,
    Positions,
    ProducerPosition,
    changed,
    first_behind,
    ordinal_of,
)
from durable_shuffle.shuffle.storage.contract import MAX_WHOLE_BYTES, Storage

EffectHandler = Callable[[str, bytes], None]
"""Takes (token, payload). It may be called again with a token that it has seen, and must then do
nothing. If it raises, the effect stays pending."""

KEEP = object()
"""The default of `state=`: the state stays unchanged."""


@dataclass(slots=True)
class ConsumerTask:
    """A held consumer log and the rules for its records. Not thread-safe.

    Once another view holds the log, all methods that write raise FencedError for good, except
    `release`.
    """

    storage: Storage
    path: ConsumerPath
    held: HeldLog
    ids: IdSource
    settings: Settings
    on_effect: EffectHandler | None = None
    _performed: set[str] = field(default_factory=set, init=False)
    _performing: bool = field(default=False, init=False)
    ended: str = field(default="", init=False)
    """ "finished" or "released"; "" while the task may still write."""
    _written: tuple[bytes, StateRef] | None = field(default=None, init=False)
    """A state object that no record is known to name yet. If the caller repeats the call, it is
    used again, so that the record is the same."""

    def acked(self, key: InputKey) -> Positions:
        """Return the positions up to which records of an input are acknowledged."""
        return self.held.state.inputs[key].acked

    @property
    def state(self) -> bytes | None:
        """The consumer's state after the last record; reads its object if it has one.

        Raises:
            CorruptDataError: the object differs from the one that the record names.
            NotFoundError: the object is missing.
        """
        return load_state(self.storage, self.held.state.state)

    def check(self) -> None:
        """Raise FencedError or InvalidInputError if this task must not write any more."""
        self.held.check()
        if self.ended:
            raise InvalidInputError(f"the view was {self.ended}: {self.path.log_prefix!r}")

    def perform_effects(self) -> None:
        """Perform the pending effects, oldest first. Call this before anything is read.

        Raises:
            InvalidInputError: an effect is pending and there is no `on_effect`.
        """
        self._check_not_performing()
        for effect in self.held.state.pending:
            if effect.token in self._performed:
                continue
            if self.on_effect is None:
                raise InvalidInputError(
                    f"effect {effect.token!r} is pending and no on_effect was given to perform it"
                )
            self._performing = True
            try:
                self.on_effect(effect.token, effect.payload)
            finally:
                self._performing = False
            self._performed.add(effect.token)

    def _check_not_performing(self) -> None:
        if self._performing:
            raise InvalidInputError(
                f"on_effect must not acknowledge: its own effect is not done yet: "
                f"{self.path.log_prefix!r}"
            )

    def ack(
        self,
        positions: Mapping[InputKey, Position],
        *,
        outputs: Sequence[OutputRef] = (),
        state: object = KEEP,
        marker_floor: int = -1,
        effect: bytes | None = None,
        holds: Sequence[str] = (),
    ) -> None:
        """Commit positions, outputs and state in one record, then perform the effect.

        Args:
            positions: of the inputs that moved forward. The caller has checked that it delivered
                the records before them.
            outputs: objects that are written already and were never published.
            state: bytes or None; KEEP leaves it unchanged.
            marker_floor: id of the highest checkpoint marker that was passed. The stored floor
                never goes down.
            effect: payload for `on_effect`, which also gets the token of this record.
            holds: keys of this task's objects that the effect needs; gc keeps them while it is
                pending.
        """
        self._check_reads()
        self._advance(
            Ack, positions, outputs, state, marker_floor=marker_floor, effect=effect, holds=holds
        )
        self.perform_effects()

    def prepare(
        self,
        positions: Mapping[InputKey, Position],
        ending: Ending,
        *,
        state: object = KEEP,
        effect: bytes | None = None,
        holds: Sequence[str] = (),
    ) -> None:
        """Acknowledge for the last time: from here on nothing is read. Performs no effect.

        The arguments are those of `ack`; `ending` is stored. Then call `perform_effects`, `commit`
        and `finish`.
        """
        self._check_reads()
        prepared = partial(Prepared, ending=ending)
        self._advance(prepared, positions, (), state, full=True, effect=effect, holds=holds)

    def commit(self) -> None:
        """Perform the effects that PREPARED left pending and record that they happened. Idempotent.

        Raises:
            InvalidInputError: nothing was prepared.
        """
        self.check()
        state = self.held.state
        if state.ending is None:
            raise InvalidInputError(f"nothing was prepared: {self.path.log_prefix!r}")
        if not state.ending.committed:
            self.perform_effects()
            self.held.write(Committed(state.owner, state.epoch))

    def finish(
        self,
        positions: Mapping[InputKey, Position],
        *,
        outputs: Sequence[OutputRef] = (),
        state: object = KEEP,
        effect: bytes | None = None,
    ) -> None:
        """Acknowledge as `ack` does, and finish the consumer: it can never be opened again."""
        self.check()
        if self.held.state.ending is not None:
            self.commit()
        self._advance(Finished, positions, outputs, state, full=True, effect=effect)
        self.ended = "finished"
        self.perform_effects()

    def reserve(
        self, key: InputKey, producer: int, upto: int, end: int, begin: ProducerPosition
    ) -> None:
        """In approximate mode, record that records may be delivered, before they are delivered.

        Args:
            upto: reserve the producer's records at least up to this ordinal, exclusive.
            end: ordinal after the extent's last record; up to `reserve_records` more records are
                reserved ahead, but none beyond `end`.
            begin: position of a frame of the extent, at or before `upto`. The next view seeks from
                there.
        """
        self.check()
        state = self.held.state
        known = state.inputs[key]
        if state.resume == "exact" or upto <= ordinal_of(known.reached, producer):
            return
        goal = max(upto, min(end, upto + self.settings.reserve_records))
        moved = {**known.reached, producer: begin.at(goal)}
        whole = self.held.whole()
        if whole is None:
            inputs = (cursor(key, known.stage_slot, changed(known.reached, moved)),)
            self.held.write(Reserve(state.owner, state.epoch, inputs))
            return
        others = tuple(c for c in whole.reached if (c.stage, c.subpartition) != key)
        self.held.write(  # a full record is due, and RESERVE is not full
            Ack(
                record_id=state.owner,
                epoch=state.epoch,
                whole=replace(whole, reached=(*others, cursor(key, known.stage_slot, moved))),
                inputs=self._cursors({}, full=True),
                outputs=state.outputs,
                state=state.state,
                marker_floor=state.marker_floor,
                pending=self._pending(None),
            )
        )

    def release(self, delivered: Mapping[InputKey, Positions]) -> None:
        """End the view. Idempotent; does nothing if the view is fenced.

        In approximate mode, record what was delivered, so that the next view drops nothing else.
        """
        if self.ended or self.held.fenced:
            return
        if self.held.state.resume == "approximate":
            with suppress(FencedError):
                self.held.settle()  # first settle a record with an unknown outcome
                inputs = tuple(
                    cursor(key, known.stage_slot, changed(known.acked, delivered.get(key, {})))
                    for key, known in self.held.state.inputs.items()
                )
                self.held.write(ViewReleased(self.held.state.owner, self.held.state.epoch, inputs))
        self.ended = "released"

    def _advance(
        self,
        make: Callable[..., ConsumerRecord],
        positions: Mapping[InputKey, Position],
        outputs: Sequence[OutputRef],
        state: object,
        *,
        full: bool = False,
        marker_floor: int = -1,
        effect: bytes | None,
        holds: Sequence[str] = (),
    ) -> None:
        """Write one record over all inputs; `make` builds it. See `ack` for the arguments."""
        self._check_not_performing()
        before = self.held.state
        moved = {key: self._checked(key, position) for key, position in positions.items()}
        if effect is not None and self.on_effect is None:
            raise InvalidInputError("an effect needs on_effect, given when the view is opened")
        self._check_outputs(outputs)
        whole = self.held.whole_now() if full else self.held.whole()
        self.held.write(
            make(
                record_id=before.owner,
                epoch=before.epoch,
                whole=whole,
                inputs=self._cursors(moved, full=whole is not None),
                outputs=(*before.outputs, *outputs) if whole else tuple(outputs),
                state=self._stored(state),
                marker_floor=max(marker_floor, before.marker_floor),
                pending=self._pending(effect, holds),
            )
        )
        self._settled(before.state)

    def _check_reads(self) -> None:
        self.check()
        if self.held.state.ending is not None:
            raise InvalidInputError(f"the end was prepared: {self.path.log_prefix!r}")

    def _checked(self, key: InputKey, position: Position) -> Positions:
        known = self.held.state.inputs.get(key)
        if known is None or (position.stage, position.subpartition) != key:
            raise InvalidInputError(
                f"a position of another input: found stage={position.stage!r} "
                f"subpartition={position.subpartition}, expected one of "
                f"{sorted(self.held.state.inputs)}"
            )
        behind = first_behind(known.acked, position.producers)
        if behind is not None:
            raise InvalidInputError(
                f"an acknowledgement goes forward only: producer={behind} acknowledged="
                f"{known.acked[behind].next_ordinal} found={position.ordinals.get(behind, 0)}"
            )
        return position.producers

    def _check_outputs(self, outputs: Sequence[OutputRef]) -> None:
        keys = [output.key for output in outputs]
        known = {output.key for output in self.held.state.outputs}
        twice = known.intersection(keys) or {k for k in keys if keys.count(k) > 1}
        if twice:
            raise InvalidInputError(f"an output is published once: {sorted(twice)[0]!r}")

    def _cursors(
        self, moved: Mapping[InputKey, Positions], *, full: bool
    ) -> tuple[InputCursor, ...]:
        cursors = []
        for key, known in self.held.state.inputs.items():
            if full:
                cursors.append(cursor(key, known.stage_slot, moved.get(key, known.acked)))
            elif new := changed(known.acked, moved.get(key, {})):
                cursors.append(cursor(key, known.stage_slot, new))
        return tuple(cursors)

    def _pending(
        self, effect: bytes | None, holds: Sequence[str] = ()
    ) -> tuple[PendingEffect, ...]:
        left = [e for e in self.held.state.pending if e.token not in self._performed]
        if effect is not None:
            token = f"{self.path.consumer}/{self.path.task}/{self.held.state.next_slot}"
            left.append(PendingEffect(token, effect, tuple(holds)))
        return tuple(left)

    def _stored(self, state: object) -> State:
        if state is KEEP:
            return self.held.state.state
        if state is None:
            return None
        if not isinstance(state, bytes):
            raise InvalidInputError(f"a state is bytes, found {type(state).__name__}")
        if len(state) > MAX_WHOLE_BYTES:
            raise InvalidInputError(
                f"a state has at most {MAX_WHOLE_BYTES} bytes, found {len(state)}"
            )
        if len(state) <= self.settings.inline_state_bytes:
            return state
        if self._written is None or self._written[0] != state:
            key = self.path.state_key(self.ids.new_id())
            reference = StateRef(key, len(state), hashlib.sha256(state).digest())
            self.storage.put(key, [state])
            self._written = state, reference
        return self._written[1]

    def _settled(self, previous: State) -> None:
        """Delete the previous state object if the newest record does not name it any more."""
        self._written = None
        if isinstance(previous, StateRef) and previous != self.held.state.state:
            with suppress(DurableShuffleError):  # it costs space, not correctness; gc finds it
                self.storage.delete([previous.key])


def load_state(storage: Storage, state: State) -> bytes | None:
    """Return a state's bytes, from the record or from the object that it names.

    Raises:
        CorruptDataError: the object differs from the one that the record names.
        NotFoundError: the object is missing.
    """
    if not isinstance(state, StateRef):
        return state
    data = storage.read(state.key, state.length)
    if len(data) != state.length or hashlib.sha256(data).digest() != state.sha256:
        raise CorruptDataError(f"a consumer's state is not what was acknowledged: {state.key!r}")
    return data
