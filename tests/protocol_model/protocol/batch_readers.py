"""The readers and the consumer of the batch producer's data, and segments that turn bad."""

from collections.abc import Iterator

from protocol.batch_log import Reading, read_segment, same_tag
from protocol.batch_values import (
    CURSOR_ON_OTHER_DATA,
    READER_MIXES,
    SEGMENTS,
    BatchSetup,
    BatchState,
    Consumer,
    Reader,
    View,
)
from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import with_item


def corruption_steps(state: BatchState, reading: Reading) -> Iterator[Step[BatchState]]:
    if not state.corruptions:
        return
    for slot in reading.commits:
        owner = state.producer_log[slot].attempt_id
        for segment in range(SEGMENTS):
            if (owner, segment) not in state.bad and state.objects[owner] > 0:
                after = state._replace(
                    bad=state.bad | {(owner, segment)}, corruptions=state.corruptions - 1
                )
                yield f"segment {segment} of commit slot {slot} turns bad", after, NO_DAMAGE


def reader_steps(
    setup: BatchSetup, state: BatchState, reading: Reading, who: int
) -> Iterator[Step[BatchState]]:
    phase, slot, got = state.readers[who]
    current, name = reading.current, f"reader {who}"
    equal = same_tag(setup, state.producer_log, slot, current)

    def become(reader: Reader) -> BatchState:
        return state._replace(readers=with_item(state.readers, who, reader))

    if phase == "idle":
        if current is not None:
            opened = become(Reader("reading", current, ()))
            yield f"{name} opens by commit slot {current}", opened, NO_DAMAGE
    elif phase == "reading" and slot is not None:
        content = read_segment(state, slot, len(got))
        if content is None:
            starved = become(Reader("starved", slot, got))
            asked = starved._replace(requested=state.requested | {slot})
            yield f"{name} cannot read segment {len(got)} of slot {slot}", asked, NO_DAMAGE
        else:
            longer = (*got, content)
            after = become(Reader("done" if len(longer) == SEGMENTS else "reading", slot, longer))
            mixed = len(set(longer)) > 1
            label = f"{name} reads segment {len(got)} of slot {slot}"
            yield label, after, (READER_MIXES,) if mixed else NO_DAMAGE
    elif phase == "starved" and current != slot:
        kept = got if equal or not setup.reader_starts_again else ()
        yield (
            f"{name} goes on by slot {current}",
            become(Reader("reading", current, kept)),
            NO_DAMAGE,
        )
    elif phase == "done" and setup.reader_starts_again and not equal:
        again = become(Reader("reading", current, ()))
        yield f"{name} starts again by slot {current}", again, NO_DAMAGE


def consumer_steps(
    setup: BatchSetup, state: BatchState, reading: Reading
) -> Iterator[Step[BatchState]]:
    me, current = state.consumer, reading.current
    if not setup.consumer or me.cursor == SEGMENTS:
        return
    if me.view is None:
        acceptable = (
            me.cursor == 0
            or not setup.cursor_compares_tags
            or same_tag(setup, state.producer_log, me.commit_slot, current)
        )
        if current is not None and acceptable:
            opened = state._replace(consumer=me._replace(view=View(current, ())))
            yield f"consumer opens at {me.cursor} by commit slot {current}", opened, NO_DAMAGE
        return
    slot, unacked = me.view
    closed = state._replace(consumer=me._replace(view=None))
    if state.consumer_crashes:
        crashed = closed._replace(consumer_crashes=state.consumer_crashes - 1)
        yield "consumer crashes", crashed, NO_DAMAGE
    at = me.cursor + len(unacked)
    if at < SEGMENTS:
        content = read_segment(state, slot, at)
        label = f"consumer reads segment {at} of slot {slot}"
        if content is None:
            asked = closed._replace(requested=state.requested | {slot})
            yield f"{label} in vain", asked, NO_DAMAGE
        else:
            view = View(slot, (*unacked, content))
            yield label, state._replace(consumer=me._replace(view=view)), NO_DAMAGE
    if unacked:
        delivered = me.delivered + unacked
        view_after = View(slot, ()) if at < SEGMENTS else None
        acked = state._replace(consumer=Consumer(at, slot, delivered, view_after))
        mixed = len(set(delivered)) > 1
        yield f"consumer acknowledges {at}", acked, (CURSOR_ON_OTHER_DATA,) if mixed else NO_DAMAGE
