"""Counts the requests of one process that go one after the other.

Each request takes a while, as over a network. A request belongs to the round behind all rounds that
had ended when it began, and a round ends when no request has begun for a while. So requests side by
side are one round, also if their threads start late.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from durable_shuffle.shuffle.storage.local import LocalStorage

VERBS = ("read", "read_ranges", "put", "put_if_absent", "list", "folders", "delete")
_QUIET_SECONDS = 0.25
"""A thread of a busy machine starts up to 0.2 s late."""


class Rounds:
    """The rounds of the requests of this process."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._begun = 0.0
        """When the last request began."""
        self._inside = threading.local()
        self.ended = 0
        """How many rounds have ended."""
        self.requests: list[tuple[int, str, str]] = []
        """Round, verb and key of each."""

    def call(self, verb: str, request: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if getattr(self._inside, "request", False):  # a verb made of others
            return request(*args, **more)
        self._inside.request = True
        try:
            self._take_part(verb, str(args[1])[-60:])
            return request(*args, **more)
        finally:
            self._inside.request = False

    def _take_part(self, verb: str, key: str) -> None:
        """Wait for the end of the round that begins now or has begun."""
        with self._changed:
            number = self.ended + 1
            self.requests.append((number, verb, key))
            self._begun = time.monotonic()
            while self.ended < number:
                left = self._begun + _QUIET_SECONDS - time.monotonic()
                if left <= 0:
                    self.ended = number
                    self._changed.notify_all()
                else:
                    self._changed.wait(left)


def folders_are_far(patch: pytest.MonkeyPatch) -> None:
    """Let local folders count as storage whose requests take long, as a bucket's do."""
    patch.setattr("durable_shuffle.shuffle.storage.local.backend_of", lambda _: None)


@contextmanager
def counted_rounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rounds]:
    """Count the rounds of this process's requests to local folders."""
    rounds = Rounds()
    with monkeypatch.context() as patch:
        for verb in VERBS:
            plain = getattr(LocalStorage, verb)

            def late(*args: Any, verb: str = verb, plain: Any = plain, **more: Any) -> Any:
                return rounds.call(verb, plain, *args, **more)

            patch.setattr(LocalStorage, verb, late)
        yield rounds
