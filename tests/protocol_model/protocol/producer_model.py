"""Producer attempts race for slot 0 with different data; drivers seal, readers read.

Two segments per attempt, so that a reader can be caught between them. A create whose sender waits
lands together with its answer; one whose sender gave up or died may land at any later time. The
ABORT record is not in it (see batch_model.py): an attempt aims at one slot only, and so here, and
only here, losing that slot is a fate that a cleaner may act upon.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.explorer import NO_DAMAGE, Step
from protocol.producer_values import (
    FALSE_LOSER,
    FALSE_WINNER,
    HALF_SEAL_READ,
    NAMED_OBJECT_GONE,
    READER_LOST_OBJECT,
    READERS_MIX,
    SEGMENT_OVERWRITTEN,
    SEGMENTS,
    Attempt,
    Commit,
    Create,
    Driver,
    Entry,
    Licence,
    Objects,
    Path,
    ProducerSetup,
    ProducerState,
    Reader,
    Repair,
)
from protocol.slots import put_if_absent, record_in, with_item


def _without(objects: Objects, path: Path) -> Objects:
    return frozenset(stored for stored in objects if stored[0] != path)


def _listed(entry: Commit, slot: int | None) -> Entry:
    return Entry(*entry, segments=len(SEGMENTS), slot=slot)


def _named_attempts(state: ProducerState) -> set[int]:
    return {commit.attempt_id for commit in state.log} | {seal.attempt_id for seal in state.seals}


@dataclass(frozen=True, slots=True)
class ProducerModel:
    setup: ProducerSetup

    def initial(self) -> ProducerState:
        o = self.setup
        repairs = 0 if o.repair is Repair.NONE else 1
        return ProducerState(
            log=(),
            objects=frozenset(),
            net=frozenset(),
            attempts=(Attempt("idle", 0, 0),) * (o.attempts + repairs),
            seals=(),
            drivers=(Driver("idle", None),) * o.drivers,
            readers=(Reader("idle", None, None, 0),) * o.readers,
            condemned=None,
            collections=o.collections,
            crashes=o.crashes,
            timeouts=o.timeouts,
            corruptions=o.corruptions,
            bad=frozenset(),
        )

    def steps(self, state: ProducerState) -> Iterator[Step[ProducerState]]:
        for who in range(len(state.attempts)):
            yield from self._attempt_steps(state, who)
        for who in range(len(state.drivers)):
            yield from self._driver_steps(state, who)
        yield from self._late_landings(state)
        for who in range(len(state.readers)):
            yield from self._reader_steps(state, who)
        if state.corruptions and state.log:
            path = (state.log[0].attempt_id, 0)
            yield (
                f"segment {path} turns bad",
                state._replace(corruptions=state.corruptions - 1, bad=state.bad | {path}),
                NO_DAMAGE,
            )
        yield from self._cleaner_steps(state)

    def _id(self, who: int) -> int:
        return who if self.setup.random_ids or who >= self.setup.attempts else 0

    def _commit_of(self, state: ProducerState, who: int) -> Create:
        attempt = state.attempts[who]
        return Create("producer", attempt.slot, Commit(self._id(who), who, attempt.build))

    def _land(self, state: ProducerState, create: Create) -> tuple[ProducerState, bool]:
        net = state.net - {create}
        if isinstance(create.record, Commit):
            log, won = put_if_absent(state.log, create.slot, create.record)
            return state._replace(log=log, net=net), won
        seals, won = put_if_absent(state.seals, create.slot, create.record)
        return state._replace(seals=seals, net=net), won

    def _attempt_steps(self, state: ProducerState, who: int) -> Iterator[Step[ProducerState]]:
        phase, slot, build = state.attempts[who]
        name = f"attempt {who}"

        def become(after: ProducerState, attempt: Attempt) -> ProducerState:
            return after._replace(attempts=with_item(after.attempts, who, attempt))

        if phase == "idle":
            if who < self.setup.attempts:
                yield f"{name} starts", become(state, Attempt("write0", 0, 0)), NO_DAMAGE
            return
        if phase in ("won", "lost", "dead"):
            return
        if state.crashes:
            crashed = state._replace(crashes=state.crashes - 1)
            yield f"{name} crashes ({phase})", become(crashed, Attempt("dead", slot, build)), ()
        if phase == "write0" or phase == "write1":
            segment = int(phase[-1])
            path = (self._id(who), segment)
            stored = state._replace(objects=_without(state.objects, path) | {(path, who)})
            after = Attempt("written" if segment else "write1", slot, build)
            yield f"{name} writes segment {path}", become(stored, after), NO_DAMAGE
        elif phase == "written":
            sent = state._replace(net=state.net | {self._commit_of(state, who)})
            yield f"{name} sends COMMIT", become(sent, Attempt("waiting", slot, build)), NO_DAMAGE
        elif phase == "waiting":
            create = self._commit_of(state, who)
            if create in state.net:
                landed, won = self._land(state, create)
                mine = won or self._is_mine(create, record_in(state.log, slot))
                verdict = Attempt("won" if mine else "delete0", slot, build)
                yield f"{name} {'won' if mine else 'lost'} slot {slot}", become(landed, verdict), ()
            if state.timeouts:
                gave_up = state._replace(timeouts=state.timeouts - 1)
                unknown = Attempt("unknown", slot, build)
                yield f"{name} gets no answer", become(gave_up, unknown), NO_DAMAGE
        elif phase == "unknown":
            again = Attempt("waiting", slot, build if self.setup.encoded_once else build + 1)
            resent = become(state, again)
            resent = resent._replace(net=resent.net | {self._commit_of(resent, who)})
            yield f"{name} sends COMMIT again", resent, NO_DAMAGE
        else:
            segment = int(phase[-1])
            path = (self._id(who), segment)
            deleted = state._replace(objects=_without(state.objects, path))
            after = Attempt("lost" if segment else "delete1", slot, build)
            yield f"{name} deletes its segment {path}", become(deleted, after), NO_DAMAGE

    def _is_mine(self, create: Create, winner: Commit | None) -> bool:
        sent = create.record
        if winner is None or not self.setup.compares_ids:
            return winner == sent
        # The author is compared as well: where ids collide, the attempts' bytes still differ.
        return (winner.attempt_id, winner.author) == (sent.attempt_id, sent.author)

    def _driver_steps(self, state: ProducerState, who: int) -> Iterator[Step[ProducerState]]:
        phase, entry = state.drivers[who]
        name = f"driver {who}"

        def become(after: ProducerState, driver: Driver) -> ProducerState:
            return after._replace(drivers=with_item(after.drivers, who, driver))

        if phase == "idle" and state.log and not state.seals:
            newest = len(state.log) - 1
            knows = Driver("knows", _listed(state.log[newest], newest))
            yield f"{name} reads commit slot {newest}", become(state, knows), NO_DAMAGE
        if entry is None:
            return
        if phase == "knows" and self.setup.seal_is_created:
            sent = state._replace(net=state.net | {Create("stage", 0, entry)})
            yield f"{name} sends SEAL", become(sent, Driver("done", None)), NO_DAMAGE
        elif phase == "knows":
            half = state._replace(seals=(entry._replace(segments=1),))
            yield f"{name} writes half the seal", become(half, Driver("half", entry)), NO_DAMAGE
        elif phase == "half":
            whole = state._replace(seals=(entry,))
            yield f"{name} writes the rest", become(whole, Driver("done", None)), NO_DAMAGE
        if state.crashes:
            crashed = state._replace(crashes=state.crashes - 1)
            yield f"{name} crashes ({phase})", become(crashed, Driver("dead", None)), NO_DAMAGE

    def _late_landings(self, state: ProducerState) -> Iterator[Step[ProducerState]]:
        """The store applies requests nobody waits for; a driver seals again after a repair."""
        if self.setup.repair is Repair.SEAL_AGAIN and len(state.log) == 2 and len(state.seals) == 1:
            again = Create("stage", 1, _listed(state.log[1], 1))
            in_flight = any(c.log == "stage" and c.slot == 1 for c in state.net)
            if state.seals[0].slot == 0 and not in_flight:
                yield "driver seals again", state._replace(net=state.net | {again}), NO_DAMAGE
        awaited = {
            self._commit_of(state, who)
            for who, attempt in enumerate(state.attempts)
            if attempt.phase == "waiting"
        }
        for create in state.net - awaited:
            after, won = self._land(state, create)
            done = "wins" if won else "is refused"
            record = f"attempt {create.record.author}'s record"
            yield f"late: {record} {done} at {create.log} slot {create.slot}", after, NO_DAMAGE

    def _reader_steps(self, state: ProducerState, who: int) -> Iterator[Step[ProducerState]]:
        phase, entry, _, slot = state.readers[who]
        name = f"reader {who}"
        seal_slot = state.seals[-1].slot if state.seals else None

        def become(reader: Reader) -> ProducerState:
            return state._replace(readers=with_item(state.readers, who, reader))

        if phase == "idle":
            found = self._index(state)
            if found is not None:
                at = found[1]
                opened = become(Reader("read0", found[0], None, at))
                yield f"{name} opens by commit slot {at}", opened, NO_DAMAGE
        elif phase == "done":
            if (
                self.setup.repair is Repair.SEAL_AGAIN
                and seal_slot is not None
                and seal_slot > slot
            ):
                yield f"{name} starts again", become(Reader("idle", None, None, 0)), NO_DAMAGE
        elif entry is not None:
            segment = int(phase[-1])
            path = (entry.attempt_id, segment)
            held_by = dict(state.objects).get(path)
            if segment >= entry.segments:
                read = become(Reader("done", None, entry.author, slot))
                yield f"{name} finds no second segment listed", read, (HALF_SEAL_READ,)
            elif path in state.bad:
                yield from self._reader_meets_bad(state, who, path)
            elif held_by is None:
                starved = become(Reader("starved", None, None, slot))
                yield f"{name} misses segment {path}", starved, (READER_LOST_OBJECT,)
            elif held_by != entry.author:
                starved = become(Reader("starved", None, None, slot))
                yield f"{name} finds other bytes in {path}", starved, (SEGMENT_OVERWRITTEN,)
            elif segment == 0:
                yield f"{name} reads {path}", become(Reader("read1", entry, None, slot)), NO_DAMAGE
            else:
                read = become(Reader("done", None, entry.author, slot))
                yield f"{name} reads {path}", read, NO_DAMAGE

    def _index(self, state: ProducerState) -> tuple[Entry, int] | None:
        """Return what a reader that opens now goes by, and the commit slot of it."""
        if state.seals:
            if self.setup.repair is Repair.FOLLOW_NEWEST and len(state.log) > 1:
                return _listed(state.log[-1], None), len(state.log) - 1
            return state.seals[-1], state.seals[-1].slot or 0
        return (_listed(state.log[0], None), 0) if state.log else None

    def _reader_meets_bad(
        self, state: ProducerState, who: int, path: Path
    ) -> Iterator[Step[ProducerState]]:
        repair, slot = self.setup.repair, state.readers[who].slot
        repairer = len(state.attempts) - 1
        newer = bool(state.seals) and (state.seals[-1].slot or 0) > slot
        if repair is not Repair.NONE and state.attempts[repairer].phase == "idle":
            again = with_item(state.readers, who, Reader("idle", None, None, 0))
            launched = with_item(state.attempts, repairer, Attempt("write0", 1, 0))
            asked = state._replace(readers=again, attempts=launched)
            yield f"reader {who} finds {path} bad, a repair starts", asked, NO_DAMAGE
        elif len(state.log) > 1 and (repair is Repair.FOLLOW_NEWEST or newer):
            again = with_item(state.readers, who, Reader("idle", None, None, slot))
            yield f"reader {who} opens again", state._replace(readers=again), NO_DAMAGE

    def _cleaner_steps(self, state: ProducerState) -> Iterator[Step[ProducerState]]:
        if state.condemned is not None:
            for path in state.condemned:
                after = state._replace(
                    objects=_without(state.objects, path),
                    condemned=(state.condemned - {path}) or None,
                )
                yield f"cleaner deletes {path}", after, NO_DAMAGE
        elif state.collections:
            named = {(owner, k) for owner in _named_attempts(state) for k in SEGMENTS}
            doomed = frozenset(
                path for path, _ in state.objects if path not in named and self._may_go(state, path)
            )
            if doomed:
                after = state._replace(condemned=doomed, collections=state.collections - 1)
                yield f"cleaner decides to delete {sorted(doomed)}", after, NO_DAMAGE

    def _may_go(self, state: ProducerState, path: Path) -> bool:
        owner, licence = path[0], self.setup.licence
        attempt = state.attempts[owner]
        winner = record_in(state.log, attempt.slot)
        if licence is Licence.UNNAMED:
            return True
        if licence is Licence.LOST_ITS_SLOT:
            return winner is not None and winner.attempt_id != owner
        if licence is Licence.SLOT_0_TAKEN:
            return bool(state.log) and state.log[0].attempt_id != owner
        if licence is Licence.CRASHED:
            return attempt.phase == "dead" and winner is None
        return attempt.phase != "won" and winner is None

    def damage(self, state: ProducerState) -> list[str]:
        found: list[str] = []
        stored = {path for path, _ in state.objects}
        if any((owner, k) not in stored for owner in _named_attempts(state) for k in SEGMENTS):
            found.append(NAMED_OBJECT_GONE)
        for who, attempt in enumerate(state.attempts):
            winner = record_in(state.log, attempt.slot)
            won = winner is not None and winner.author == who
            if attempt.phase == "won" and not won:
                found.append(FALSE_WINNER)
            if attempt.phase in ("delete0", "delete1", "lost") and won:
                found.append(FALSE_LOSER)
        if self._results_mix(state):
            found.append(READERS_MIX)
        return found

    def _results_mix(self, state: ProducerState) -> bool:
        """Two authors among the results that count: the newest tag's; all where rule 6 is off."""
        done = [reader for reader in state.readers if reader.phase == "done"]
        if not done:
            return False
        newest = max(reader.slot for reader in done)
        if (
            self.setup.repair is Repair.SEAL_AGAIN
            and state.seals
            and len(done) == len(state.readers)
        ):
            accepted = all(reader.slot >= (state.seals[-1].slot or 0) for reader in done)
        else:
            accepted = self.setup.repair is Repair.FOLLOW_NEWEST
        counting = done if accepted else [reader for reader in done if reader.slot == newest]
        return len({reader.author for reader in counting}) > 1
