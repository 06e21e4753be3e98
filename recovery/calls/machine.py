"""The async operator without I/O: events in, actions out, one outcome per element.

The shell reports events (`completed`, `failed`, `tick`, ...) with the time, and carries out the
actions that are returned. A completion names its element and the number of its attempt. If it does
not fit the current call, it came late: it is counted and ignored, so the machine does not rely on
cancelled calls or timers to stay silent. Deadlines come before retry timers: nothing is retried
after a deadline.

Not thread-safe: it has one owner.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from durable_shuffle.recovery.calls.elements import (
    DelayQueue,
    Element,
    Marker,
    OrderedQueue,
    OutputQueue,
    Phase,
    UnorderedQueue,
)
from durable_shuffle.recovery.calls.settings import (
    AsyncCounts,
    AsyncSettings,
    KeepRetryState,
    SavedElement,
    Snapshot,
    restored_budget,
)
from durable_shuffle.serialization.errors import AbortedError, InvalidInputError
from durable_shuffle.shuffle.base.retry import Jitter


class Do(Enum):
    """What the shell must do with an element."""

    CALL = "call fn for element.attempt"
    EXPIRE = "stop the call under way and ask the timeout handler"
    STOP = "stop the call under way"


CallAction = tuple[Do, Element]
_NOTHING: Sequence[CallAction] = ()


class AsyncMachine:
    """The state of one operator."""

    def __init__(self, settings: AsyncSettings, jitter: Jitter, snapshot: Snapshot | None = None):
        """Start empty, or with a `snapshot`, which `admit` takes in as there is room."""
        self._settings = settings
        self._jitter = jitter
        self._queue: OutputQueue = (
            OrderedQueue() if settings.mode == "ordered" else UnorderedQueue()
        )
        self._waiting: DelayQueue[Element] = DelayQueue()
        self._deadlines: DelayQueue[Element] = DelayQueue()
        self._restored: deque[SavedElement | Marker] = deque(snapshot.entries if snapshot else ())
        self._next_ordinal = snapshot.next_ordinal if snapshot else 0
        self._last_cursor = 0
        """The cursor when the operator ended."""
        self._capacity = settings.capacity
        self._retrying = settings.retry.active
        self._draining = False
        self.input_closed = False
        self.ended: BaseException | None = None
        """Why the operator ended and is silent: the first failure, or AbortedError."""
        self._attempts = self._retries = self._give_ups = 0
        self._timeouts = self._late = self._emitted = 0

    # -- questions

    def __len__(self) -> int:
        """Elements and markers inside."""
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        """Whether new input may come; False until all restored elements are in."""
        return len(self._queue) < self._capacity and not self._restored

    @property
    def has_backlog(self) -> bool:
        """Whether restored elements still wait for room."""
        return bool(self._restored)

    @property
    def finished(self) -> bool:
        """Whether all input has come and left."""
        return self.input_closed and not self._restored and not self._queue

    @property
    def cursor(self) -> int:
        """All ordinals below it have left: the lowest one inside, even if later ones have left."""
        if self.ended is not None:
            return self._last_cursor
        inside = (e.ordinal for e in (*self._queue, *self._restored) if not isinstance(e, Marker))
        return min(inside, default=self._next_ordinal)

    @property
    def counts(self) -> AsyncCounts:
        """Counts of events so far."""
        return AsyncCounts(
            attempts=self._attempts,
            retries=self._retries,
            give_ups=self._give_ups,
            timeouts=self._timeouts,
            late=self._late,
            emitted=self._emitted,
            waiting=len(self._waiting),
        )

    def next_when(self) -> float | None:
        """When `tick` is due, None if no element waits for a moment."""
        retry, deadline = self._waiting.next_when(), self._deadlines.next_when()
        if retry is None or deadline is None:
            return deadline if retry is None else retry
        return min(retry, deadline)

    # -- input

    def submit(self, value: Any, now: float) -> Element:
        """Take in a new element; the shell calls fn for it.

        Raises:
            InvalidInputError: there is no room, or the input is closed.
            AbortedError: the operator ended.
        """
        self._check_open()
        element = Element(self._next_ordinal, value, now)
        self._next_ordinal += 1
        self._queue.put(element)
        if self._settings.timeout_seconds is not None:
            self._deadlines.add(element, now + self._settings.timeout_seconds)
        self._call(element)
        return element

    def add_marker(self, marker: Marker) -> None:
        """Take in a marker; it takes up room and leaves in order. Raises as `submit`."""
        self._check_open()
        self._queue.put(marker)

    def admit(self, now: float, wall_now: float) -> Sequence[CallAction]:
        """Take in restored elements, as far as there is room."""
        if not self._restored or self.ended is not None:
            return _NOTHING
        commands: list[CallAction] = []
        while self._restored and len(self._queue) < self._settings.capacity:
            entry = self._restored.popleft()
            if isinstance(entry, Marker):
                self._queue.put(entry)
            else:
                commands.append(self._take_back(entry, now, wall_now))
        return commands

    def close_input(self) -> None:
        """Allow no new input; elements inside continue, including retries."""
        self.input_closed = True

    def drain(self) -> Sequence[CallAction]:
        """Close the input, end all retries, and give each waiting element one last call."""
        self.input_closed = True
        if self.ended is not None:
            return _NOTHING
        self._draining = True  # first, so that nothing retries from here on
        commands = []
        for element in self._waiting.pop_all():
            self._call(element)
            commands.append((Do.CALL, element))
        return commands

    # -- completions

    def completed(
        self, element: Element, attempt: int, result: Any, now: float
    ) -> Sequence[CallAction]:
        """Call number `attempt` returned."""
        if element.attempt != attempt or element.phase is not Phase.CALLING:
            self._late += 1
            return _NOTHING
        if self._retrying:
            try:
                again = self._settings.retry.wants_retry_of_result(result)
            except Exception as error:  # noqa: BLE001 - the user's predicate failed
                return self._fail(element, error)
            if again and self._retry_later(element, now):
                return _NOTHING
        self._done(element, result)
        return _NOTHING

    def failed(
        self, element: Element, attempt: int, error: BaseException, now: float
    ) -> Sequence[CallAction]:
        """Call number `attempt` raised."""
        if element.attempt != attempt or element.phase is not Phase.CALLING:
            self._late += 1
            return _NOTHING
        if self._retrying:
            try:
                again = self._settings.retry.wants_retry_of_exception(error)
            except Exception as raised:  # noqa: BLE001 - the user's predicate failed
                raised.__context__ = error
                return self._fail(element, raised)
            if again and self._retry_later(element, now):
                return _NOTHING
        return self._fail(element, error)

    def tick(self, now: float) -> Sequence[CallAction]:
        """Handle that time has passed."""
        commands: list[CallAction] = []
        for element in self._deadlines.pop_due(now):
            commands.append(self._expire(element))
        for element in self._waiting.pop_due(now):
            self._call(element)
            commands.append((Do.CALL, element))
        return commands

    def timeout_handled(self, element: Element, handler: Callable[[], Any]) -> Sequence[CallAction]:
        """Ask the handler for the outcome of an element at its deadline; its answer is final."""
        if element.phase is not Phase.EXPIRED:
            return _NOTHING
        try:
            result = handler()
        except Exception as error:  # noqa: BLE001 - the user's handler failed
            return self._fail(element, error)
        if element.phase is Phase.EXPIRED:  # the handler may have cancelled everything
            self._done(element, result)
        return _NOTHING

    # -- output

    def pop(self) -> Element | Marker | None:
        """Take out the next entry that leaves, None if there is none."""
        entry = self._queue.pop()
        if entry is None or isinstance(entry, Marker):
            return entry
        entry.become(Phase.EMITTED)
        self._emitted += 1
        return entry

    # -- ends

    def snapshot(self, now: float, wall_now: float) -> Snapshot:
        """Return the state that must survive a restart; changes nothing.

        Raises:
            AbortedError: the operator has ended, so the state is gone.
        """
        if self.ended is not None:
            raise AbortedError("an async operator that ended has no state to keep")
        entries = [
            e if isinstance(e, Marker) else self._save(e, now, wall_now) for e in self._queue
        ]
        return Snapshot(self.cursor, self._next_ordinal, (*entries, *self._restored))

    def stop(self, reason: BaseException) -> Sequence[CallAction]:
        """End the operator: nothing is called or emitted any more. The first reason counts."""
        if self.ended is not None:
            return _NOTHING
        self._last_cursor = self.cursor
        self.ended = reason
        commands: list[CallAction] = []
        for entry in self._queue:
            if isinstance(entry, Marker) or entry.phase is Phase.FAILED:
                continue
            if entry.phase is Phase.CALLING:
                commands.append((Do.STOP, entry))
            entry.become(Phase.DROPPED)
        self._queue.clear()
        self._restored.clear()
        self._waiting.pop_all()
        self._deadlines.pop_all()
        return commands

    # -- steps of one element

    def _check_open(self) -> None:
        if self.ended is not None:
            raise AbortedError(f"the async operator ended: {self.ended}") from self.ended
        if self.input_closed:
            raise InvalidInputError("the input of the async operator was closed")
        if not self.has_room:
            raise InvalidInputError(
                f"the async operator is full: capacity={self._settings.capacity}"
            )

    def _call(self, element: Element) -> None:
        element.become(Phase.CALLING)
        element.attempt += 1
        self._attempts += 1
        if element.attempt > 1:
            self._retries += 1

    def _retry_later(self, element: Element, now: float) -> bool:
        """Have the element wait for its next call, if it may have one."""
        delay = None
        if not self._draining and not element.last:
            delay = self._settings.retry.backoff.delay_seconds(element.attempt, self._jitter)
        if delay is None:
            self._give_ups += 1
            return False
        element.become(Phase.WAITING)
        self._waiting.add(element, now + delay)
        return True

    def _expire(self, element: Element) -> CallAction:
        self._waiting.discard(element)
        element.become(Phase.EXPIRED)
        self._timeouts += 1
        return Do.EXPIRE, element

    def _done(self, element: Element, result: Any) -> None:
        element.become(Phase.DONE)
        element.result = result
        if self._deadlines:
            self._deadlines.discard(element)
        self._queue.done(element)

    def _fail(self, element: Element, error: BaseException) -> Sequence[CallAction]:
        element.become(Phase.FAILED)
        error.add_note(f"async element {element.ordinal}, attempt {element.attempt}")
        return self.stop(error)

    def _take_back(self, saved: SavedElement, now: float, wall_now: float) -> CallAction:
        keep: KeepRetryState = self._settings.keep_retry_state if self._retrying else "none"
        budget = restored_budget(
            saved,
            keep=keep,
            on_expired=self._settings.on_expired,
            timeout_seconds=self._settings.timeout_seconds,
            max_attempts=self._settings.retry.backoff.max_attempts,
            wall_now=wall_now,
        )
        element = Element(saved.ordinal, saved.value, now)
        element.attempt = budget.attempts_used
        element.last = budget.last
        if keep != "none" and saved.attempts is not None:
            element.charged_before = saved.charged_seconds
            element.first_wall_seconds = saved.first_wall_seconds
        self._queue.put(element)
        if budget.expired:
            return self._expire(element)
        if budget.seconds is not None:
            self._deadlines.add(element, now + budget.seconds)
        self._call(element)
        return Do.CALL, element

    def _save(self, element: Element, now: float, wall_now: float) -> SavedElement:
        if self._settings.keep_retry_state == "none" or not self._retrying:
            return SavedElement(element.ordinal, element.value)
        here = max(0.0, now - element.started)
        first = element.first_wall_seconds
        return SavedElement(
            element.ordinal,
            element.value,
            attempts=element.attempt,
            first_wall_seconds=wall_now - here if first is None else first,
            charged_seconds=element.charged_before + here,
        )
