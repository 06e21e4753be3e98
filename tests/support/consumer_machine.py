"""Consumers against a model: a Hypothesis state machine that anyone can run on their storage.

    class TestMine(ConsumerMachine.TestCase): ...       # in memory

    class MyMachine(ConsumerMachine):
        def make_storage(self) -> Storage: ...
    TestMine = MyMachine.TestCase

Two consumers, one exact and one approximate, open, read, acknowledge, crash, release, finish, and
old views wake up. The expectation is a few lists of row numbers; outputs are read from the records
that won their slots. Nothing that is expected is asked of the code under test.

It needs the package hypothesis.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sealed_stage import left_over, sealed_stage, slots_of
from small_stage import SeededIds

from durable_shuffle.serialization.errors import FencedError, InvalidInputError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import forget_views, open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.read.position import Position
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.memory import MemoryStorage

OUTPUT = pa.schema([("n", pa.int64())])
SETTINGS = Settings(
    view_memory_bytes=16384,
    view_buffer_bytes=4096,
    view_prefetch=False,
    reserve_records=4,
    inline_state_bytes=2,
)
NAMES = st.sampled_from(["exact", "approximate"])
COUNTS = st.integers(1, 9)


@dataclass
class Expected:
    """One consumer as it must be."""

    published: list[int] = field(default_factory=list)
    """Numbers in won outputs, in order."""
    delivered: list[int] = field(default_factory=list)
    """Numbers that any of its views handed out, in order of time."""
    acked: int = 0
    """How many numbers of the partition lie before the acknowledged position."""
    state: bytes | None = None
    finished: bool = False
    epoch: int = 0
    exactly: bool = True
    """The last view ended by itself, so nothing that was not delivered is left out."""


@dataclass
class Reader:
    """A view and what it handed out since its last acknowledgement."""

    view: View
    since: list[int] = field(default_factory=list)
    marks: list[tuple[Position, int]] = field(default_factory=list)
    """(position, how many of `since` lie before it)."""


class ConsumerMachine(RuleBasedStateMachine):
    """Override `make_storage` to run it elsewhere."""

    def make_storage(self) -> Storage:
        """Return an empty storage."""
        return MemoryStorage()

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        """Write a stage."""
        forget_views()
        self.ids = SeededIds(random.Random(seed))
        self.storage = self.make_storage()
        self.made = sealed_stage(self.storage, self.ids, producers=2, partitions=1, rows=20)
        self.everything = self.made.of(0)
        prefix = self.made.stage.path.prefix
        self.objects = {i.key: self.storage.read(i.key) for i in self.storage.list(prefix)}
        self.expected = {"exact": Expected(), "approximate": Expected()}
        self.readers: dict[str, Reader] = {}
        self.zombies: list[tuple[str, Reader]] = []
        self.orphans = 0

    # -- what a consumer does

    @rule(name=NAMES)
    def open(self, name: Any) -> None:
        """Open a view; one of this process that is still there is superseded."""
        mine = self.expected[name]
        old = self.readers.pop(name, None)
        if old is not None:
            self.zombies.append((name, old))
            mine.exactly = True  # released by the one that follows it in the same process
        view = open_view(
            self.made.stage, 0, consumer=name, resume=name, settings=SETTINGS, ids=self.ids
        )
        assert view.finished == mine.finished
        assert view.state == mine.state
        if mine.finished:
            assert list(view.records()) == []
            return
        mine.epoch += 1
        assert view.epoch == mine.epoch
        start = view.position.records
        if name == "exact":
            assert start == mine.acked
        else:
            seen = {self.everything.index(n) for n in mine.delivered}
            first = max(seen, default=-1) + 1
            assert start >= max(first, mine.acked)
            assert start == max(first, mine.acked) or not mine.exactly
            found = view.statistics()
            assert found.records_dropped == start - len(mine.published)
            mine.acked = start
        mine.exactly = True
        self.readers[name] = Reader(view)

    @rule(name=NAMES, count=COUNTS)
    def read(self, name: str, count: int) -> None:
        """Read some rows; each is the next one, or, approximately, one that never came before."""
        reader = self.readers.get(name)
        if reader is None:
            return
        mine = self.expected[name]
        at = mine.acked + len(reader.since)
        found = []
        for row in reader.view.records():
            found.append(row["n"])
            if len(found) == count:
                break
        assert found == self.everything[at : at + count]
        if name == "approximate":
            assert not {*found} & {*mine.delivered}
        mine.delivered += found
        reader.since += found
        reader.marks.append((reader.view.position, len(reader.since)))

    @rule(name=NAMES, which=st.integers(0, 5), large=st.booleans())
    def acknowledge(self, *, name: str, which: int, large: bool) -> None:
        """Publish and acknowledge all that was read, or up to an earlier position."""
        reader = self.readers.get(name)
        if reader is None or not reader.marks:
            return
        position, count = reader.marks[-1 - which % len(reader.marks)]
        mine = self.expected[name]
        done = reader.since[:count]
        state = f"{len(mine.published) + len(done)}".ljust(9 if large else 1, ".").encode()
        reader.view.ack(position, outputs=[self._write(reader.view, done)], state=state)
        mine.published += done
        mine.acked += count
        mine.state = state
        reader.since = reader.since[count:]
        reader.marks = [(p, n - count) for p, n in reader.marks if n > count]

    @rule(name=NAMES)
    def finish(self, name: str) -> None:
        """End for good, at the end of the input and nowhere else."""
        reader = self.readers.get(name)
        if reader is None:
            return
        mine = self.expected[name]
        if not reader.view.at_end:
            try:
                reader.view.finish()
            except InvalidInputError:
                return
            raise AssertionError("a consumer finished before the end of its input")
        outputs = [self._write(reader.view, reader.since)] if reader.since else []
        reader.view.finish(outputs=outputs)
        mine.published += reader.since
        mine.acked += len(reader.since)
        mine.finished = True
        del self.readers[name]

    # -- how a view ends

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        """Give it back."""
        reader = self.readers.pop(name, None)
        if reader is not None:
            reader.view.release()
            self.zombies.append((name, reader))

    @rule()
    def crash(self) -> None:
        """The process dies with all that it knew; its views may wake up elsewhere."""
        forget_views()
        for name, reader in self.readers.items():
            self.expected[name].exactly = False
            self.zombies.append((name, reader))
        self.readers.clear()

    @precondition(lambda self: self.zombies)
    @rule(which=st.integers(0, 20), release=st.booleans())
    def zombie_wakes(self, *, which: int, release: bool) -> None:
        """It releases without effect, or tries to acknowledge; with a successor it must not."""
        name, reader = self.zombies[which % len(self.zombies)]
        mine = self.expected[name]
        if reader.view.epoch == mine.epoch and not mine.finished:
            return  # nobody has followed it yet: it is slow, not superseded
        if release:
            reader.view.release()
            return
        output = self._write(reader.view, [-1])
        self.orphans += 1
        try:
            reader.view.ack(outputs=[output])
        except (FencedError, InvalidInputError):
            return
        raise AssertionError("a superseded view acknowledged")

    # -- what always holds

    @invariant()
    def published_is_expected(self) -> None:
        """Outputs that won records name, and nothing else, are published."""
        for name, mine in getattr(self, "expected", {}).items():
            keys: dict[str, None] = {}
            for _, fields in slots_of(self.storage, name):
                keys.update(dict.fromkeys(o["key"] for o in fields.get("outputs", ())))
            found = [n for key in keys for n in _numbers(self.storage.read(key))]
            assert found == mine.published
            if name == "exact":
                assert found == self.everything[: len(found)]
            if mine.finished and name == "exact":
                assert found == self.everything

    def teardown(self) -> None:
        """Nothing is left behind but what zombies wrote; the stage is untouched."""
        if not hasattr(self, "expected"):
            return
        left = sum(len(left_over(self.storage, name)) for name in self.expected)
        assert left <= self.orphans
        prefix = self.made.stage.path.prefix
        assert {i.key: self.storage.read(i.key) for i in self.storage.list(prefix)} == self.objects
        forget_views()

    def _write(self, view: View, numbers: list[int]) -> Any:
        return write_output(view.task, OUTPUT, [pa.record_batch([numbers], schema=OUTPUT)])


def _numbers(data: bytes) -> list[int]:
    """Return the rows of an output of at most one frame, by the format page."""
    if not data:  # no rows, no frame
        return []
    length = int.from_bytes(data[12:16], "little")
    message = pa.ipc.read_message(pa.py_buffer(data[24 : 24 + length]))
    found: list[int] = pa.ipc.read_record_batch(message, OUTPUT)[0].to_pylist()
    return found
