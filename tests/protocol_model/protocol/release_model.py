"""Deleting input data behind registered consumers, while one of them restarts.

Two consumers that registered before the start read records 0..n-1, acknowledge and may crash; a
releaser deletes what all of them have passed, reading their cursors one after the other. Around
them: a zombie of consumer 0, a consumer that registers late, a reader without a cursor.
It models rule 7 only; that cursors themselves never go back is consumer_model.py's business.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import with_item

LIVE_CONSUMER_STARVED: Final = "data that a registered consumer still needs is gone"
LATE_CONSUMER_STARVED: Final = "data that a late consumer still needs is gone"
PLAIN_READER_STARVED: Final = "data that a reader without a cursor still needs is gone"
ZOMBIE_RAN_PRODUCER: Final = "a fenced view made a producer run again"

FIXED_CONSUMERS: Final = 2


@dataclass(frozen=True, slots=True)
class ReleaseSetup:
    """How many records and actors there are, and which parts of rule 7 hold."""

    records: int = 3
    restarts: int = 2
    late_consumer: bool = False
    late_begins: Literal["before", "behind", "at 0"] = "before"
    """Of a late consumer: only before a release, at 0; or at any time, behind what is released, in
    one step of the releaser with its registration; or at any time at 0."""
    plain_reader: bool = False
    release_is_logged: bool = True
    """RELEASE(upto) wins a slot before anything goes, and a later REGISTER below it is refused."""
    releases_committed: bool = True
    """The releaser goes by acknowledged cursors, not by how far a view has read."""
    plain_reader_holds: bool = True
    """A stage that may be read without a cursor is released only as a whole (here: never)."""
    view_checks_fence: bool = True
    """Before it reports missing data, a view looks whether it is fenced."""


class Consumer(NamedTuple):
    """A consumer task: what it has acknowledged and what its current view has read."""

    acked: int
    read: int
    registered: bool


class Zombie(NamedTuple):
    """The superseded view of consumer 0; exists once consumer 0 has crashed."""

    read: int
    exists: bool
    running: bool


class Releaser(NamedTuple):
    """Idle; has seen consumer 0's cursor; or deletes all below `upto`."""

    phase: Literal["idle", "half", "deleting"]
    upto: int


class ReleaseState(NamedTuple):
    consumers: tuple[Consumer, ...]
    objects: frozenset[int]
    plain_read: int
    zombie: Zombie
    releaser: Releaser
    restarts: int
    producer_asked: bool
    released: int
    """The highest RELEASE that was won; stays 0 where releases are not logged."""


@dataclass(frozen=True, slots=True)
class ReleaseModel:
    setup: ReleaseSetup

    def initial(self) -> ReleaseState:
        setup = self.setup
        consumers: tuple[Consumer, ...] = (Consumer(0, 0, registered=True),) * FIXED_CONSUMERS
        if setup.late_consumer:
            consumers += (Consumer(0, 0, registered=False),)
        return ReleaseState(
            consumers=consumers,
            objects=frozenset(range(setup.records)),
            plain_read=0 if setup.plain_reader else setup.records,
            zombie=Zombie(0, exists=False, running=True),
            releaser=Releaser("idle", 0),
            restarts=setup.restarts,
            producer_asked=False,
            released=0,
        )

    def damage(self, state: ReleaseState) -> tuple[str, ...]:
        """All damage here is done by a step: a read of what is gone."""
        return NO_DAMAGE

    def steps(self, state: ReleaseState) -> Iterator[Step[ReleaseState]]:
        for who in range(len(state.consumers)):
            yield from self._consumer_steps(state, who)
        yield from self._zombie_steps(state)
        yield from self._plain_reader_steps(state)
        yield from self._releaser_steps(state)

    def _consumer_steps(self, state: ReleaseState, who: int) -> Iterator[Step[ReleaseState]]:
        me = state.consumers[who]

        def become(consumer: Consumer) -> ReleaseState:
            return state._replace(consumers=with_item(state.consumers, who, consumer))

        if not me.registered:
            late = self.setup.release_is_logged and state.released > 0
            if not late or self.setup.late_begins != "before":
                start = state.released if self.setup.late_begins == "behind" else 0
                yield (
                    f"consumer {who} registers at {start}",
                    become(Consumer(start, start, registered=True)),
                    NO_DAMAGE,
                )
            return
        if me.read < self.setup.records:
            starved = LIVE_CONSUMER_STARVED if who < FIXED_CONSUMERS else LATE_CONSUMER_STARVED
            yield (
                f"consumer {who} reads record {me.read}",
                become(me._replace(read=me.read + 1)),
                NO_DAMAGE if me.read in state.objects else (starved,),
            )
        if me.read > me.acked:
            yield (
                f"consumer {who} acknowledges {me.read}",
                become(me._replace(acked=me.read)),
                NO_DAMAGE,
            )
            if state.restarts:
                after = become(me._replace(read=me.acked))._replace(restarts=state.restarts - 1)
                if who == 0 and not state.zombie.exists:
                    after = after._replace(zombie=Zombie(me.read, exists=True, running=True))
                yield f"consumer {who} is replaced, opens at {me.acked}", after, NO_DAMAGE

    def _zombie_steps(self, state: ReleaseState) -> Iterator[Step[ReleaseState]]:
        zombie = state.zombie
        if not (zombie.exists and zombie.running and zombie.read < self.setup.records):
            return
        if zombie.read in state.objects:
            onwards = zombie._replace(read=zombie.read + 1)
            yield f"zombie reads record {zombie.read}", state._replace(zombie=onwards), NO_DAMAGE
            return
        stopped = state._replace(zombie=zombie._replace(running=False))
        if self.setup.view_checks_fence:
            yield f"zombie misses record {zombie.read}, finds itself fenced", stopped, NO_DAMAGE
        else:
            yield (
                f"zombie misses record {zombie.read}, asks for the producer",
                stopped._replace(producer_asked=True),
                (ZOMBIE_RAN_PRODUCER,),
            )

    def _plain_reader_steps(self, state: ReleaseState) -> Iterator[Step[ReleaseState]]:
        at = state.plain_read
        if at < self.setup.records:
            damage = NO_DAMAGE if at in state.objects else (PLAIN_READER_STARVED,)
            yield f"plain reader reads record {at}", state._replace(plain_read=at + 1), damage

    def _releaser_steps(self, state: ReleaseState) -> Iterator[Step[ReleaseState]]:
        phase, upto = state.releaser
        idle = state._replace(releaser=Releaser("idle", 0))
        if phase == "idle":
            seen = self._cursor(state.consumers[0])
            half = state._replace(releaser=Releaser("half", seen))
            yield f"releaser sees consumer 0 at {seen}", half, NO_DAMAGE
        elif phase == "half":
            others = [self._cursor(c) for c in state.consumers[1:] if c.registered]
            smallest = min([upto, *others])
            if self.setup.plain_reader and self.setup.plain_reader_holds:
                smallest = 0
            if smallest <= state.released and all(o >= smallest for o in state.objects):
                yield "releaser finds nothing to release", idle, NO_DAMAGE
            else:
                yield (
                    f"releaser sees the others, releases below {smallest}",
                    state._replace(
                        releaser=Releaser("deleting", smallest),
                        released=smallest if self.setup.release_is_logged else state.released,
                    ),
                    NO_DAMAGE,
                )
        else:
            for record in state.objects:
                if record < upto:
                    gone = state._replace(objects=state.objects - {record})
                    yield f"releaser deletes record {record}", gone, NO_DAMAGE
            yield "releaser stops or crashes", idle, NO_DAMAGE

    def _cursor(self, consumer: Consumer) -> int:
        return consumer.acked if self.setup.releases_committed else consumer.read
