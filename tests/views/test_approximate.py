"""Approximate resume: nothing twice; what is dropped is counted, and never too low."""

from collections.abc import Callable

import pytest
from sealed_stage import SealedStage, sealed_stage, slots_of
from small_stage import SeededIds

from durable_shuffle.serialization.errors import FencedError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.storage.memory import MemoryStorage

Open = Callable[..., View]
Numbers = Callable[..., list[int]]
Forget = Callable[[], None]

RESERVE = 5
SMALL = Settings(
    view_memory_bytes=8192, view_buffer_bytes=2048, view_prefetch=False, reserve_records=RESERVE
)


@pytest.fixture
def open_approx(open_: Open) -> Open:
    """Open with the smallest reservations."""

    def opening(**how: object) -> View:
        return open_(**{"resume": "approximate", "settings": SMALL, **how})

    return opening


@pytest.mark.requirement("R-F135-16")
@pytest.mark.parametrize("ends", ["released", "crashed"])
def test_no_record_comes_twice_and_the_dropped_are_counted(
    made: SealedStage, open_approx: Open, numbers: Numbers, other_process: Forget, ends: str
) -> None:
    """Whatever was acknowledged of what was read: exact after a release, an upper bound else."""
    expected = made.of(0)
    for read in (0, 1, 2, 3, 7, 20, 41):
        for acked in sorted({0, 1, read // 2, read}):
            if acked > read:
                continue
            name = f"c{read}-{acked}"
            view = open_approx(consumer=name)
            got = numbers(view, acked)
            view.ack()
            got += numbers(view, read - acked)
            if ends == "released":
                view.release()
            other_process()
            view = open_approx(consumer=name)
            found = view.statistics()
            rest = numbers(view)
            assert rest == expected[len(expected) - len(rest) :]
            assert len(got) == read
            assert got == expected[:read]
            lost = len(expected) - read - len(rest)  # reserved and never handed out
            assert lost >= 0
            assert found.records_dropped == read - acked + lost
            if ends == "released":
                assert lost == 0
                assert found.dropped_exact
            else:
                assert lost <= RESERVE + 2  # what one frame more holds
                assert found.dropped_exact == (found.records_dropped == 0)


@pytest.mark.requirement("R-F135-17")
def test_release_never_skips_more_than_death(
    made: SealedStage, open_approx: Open, numbers: Numbers, other_process: Forget
) -> None:
    for read in range(12):
        starts = []
        for release in (True, False):
            name = f"c{read}-{release}"
            view = open_approx(consumer=name)
            numbers(view, read)
            if release:
                view.release()
            other_process()
            starts.append(open_approx(consumer=name).position.records)
        assert starts[0] == read
        assert starts[0] <= starts[1]


@pytest.mark.requirement("R-F135-16")
def test_a_view_that_is_killed_inside_a_record_skips_the_unacknowledged_and_that_one(
    made: SealedStage, open_approx: Open, other_process: Forget
) -> None:
    """Raw buffers: the record of which a part was handed out is dropped and counted."""
    view = open_approx()
    whole = cut = 0
    for buffer in view.buffers():
        whole = buffer.whole_ordinal
        cut = buffer.end_ordinal - buffer.whole_ordinal
        if whole and cut:
            break
    assert cut > 0
    view.release()
    other_process()
    found = open_approx()
    assert found.position.records == whole + cut
    assert found.statistics().records_dropped == whole + cut
    assert found.statistics().dropped_exact


@pytest.mark.requirement("R-F135-12")
def test_a_view_of_the_same_process_goes_on_with_what_was_fetched(
    made: SealedStage, open_approx: Open
) -> None:
    """Taken over inside a record: its rest is trimmed, what follows is neither lost nor doubled."""
    ranges = []
    view = open_approx()
    for turn in range(100):
        for count, buffer in enumerate(view.buffers(), 1):
            if buffer.data.nbytes:
                ranges.append((turn, buffer.first_ordinal, buffer.end_ordinal))
            if count == 3:
                break
        if view.at_end:
            break
        view = open_approx()
    assert view.epoch > 3
    assert view.statistics().dropped_exact
    assert view.position.records == len(made.of(0))
    starts: dict[int, int] = {}
    for turn, first, end in ranges:
        if turn not in starts and first < end:
            starts[turn] = first
    assert list(starts.values()) == sorted(starts.values()) or made.producers > 1
    assert view.statistics().records_dropped == len(made.of(0)) - (
        view.statistics().records_delivered
    )


def test_a_zombie_delivers_at_most_what_it_reserved(
    made: SealedStage, open_approx: Open, numbers: Numbers, other_process: Forget
) -> None:
    """It may hand out its reservation, which its successor left out; then it is fenced."""
    old = open_approx()
    got = numbers(old, 2)
    other_process()
    new = open_approx()
    with pytest.raises(FencedError):
        got += [row["n"] for row in _until_fenced(old, got)]
    rest = numbers(new)
    assert sorted({*got, *rest}) == sorted([*got, *rest])
    assert rest == made.of(0)[-len(rest) :]


def _until_fenced(view: View, got: list[int]) -> list[dict[str, int]]:
    for row in view.records():
        got.append(row["n"])
    return []


def test_a_full_record_keeps_the_reservation(
    made: SealedStage,
    open_approx: Open,
    numbers: Numbers,
    memory: MemoryStorage,
    other_process: Forget,
) -> None:
    """64 acknowledgements within one reservation: the full one among them must not forget it."""
    large = Settings(
        view_memory_bytes=8192, view_buffer_bytes=2048, view_prefetch=False, reserve_records=70
    )
    view = open_approx(settings=large)
    first = numbers(view, 1)
    for _ in range(64):
        view.ack()
    whole = [n for n, (kind, f) in enumerate(slots_of(memory)) if f.get("whole")]
    assert whole == [64]
    got = first + numbers(view, 20)
    other_process()
    rest = numbers(open_approx(settings=large))
    assert not {*got} & {*rest}


def test_a_change_to_exact_delivers_again_what_was_not_acknowledged(
    made: SealedStage, open_approx: Open, open_: Open, numbers: Numbers, other_process: Forget
) -> None:
    """The mode is the new view's: nothing that was not acknowledged is lost from there on."""
    view = open_approx()
    numbers(view, 3)
    view.ack()
    numbers(view, 10)
    other_process()
    view = open_()
    assert numbers(view) == made.of(0)[3:]
    assert view.statistics().records_dropped == 0


def test_a_consumer_that_never_acknowledges_writes_full_records_too(
    memory: MemoryStorage, ids: SeededIds, numbers: Numbers, other_process: Forget
) -> None:
    """Else opening would read one record per reservation; nothing is acknowledged by it."""
    made = sealed_stage(memory, ids, producers=1, partitions=1, rows=320, chars=4100)
    settings = Settings(view_prefetch=False, reserve_records=1)
    view = open_view(made.stage, 0, consumer="c", resume="approximate", settings=settings, ids=ids)
    got = numbers(view, 300)
    whole = [n for n, (kind, f) in enumerate(slots_of(memory)) if kind == "OPEN" or f.get("whole")]
    assert whole == [0, 64, 128]
    assert view.acknowledged.records == 0
    other_process()
    view = open_view(made.stage, 0, consumer="c", resume="approximate", settings=settings, ids=ids)
    assert view.statistics().records_dropped == view.position.records
    rest = numbers(view)
    assert not {*got} & {*rest}
    assert len(got) + len(rest) >= 318
