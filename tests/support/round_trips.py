"""Counts the requests of one process that go one after the other.

Each request takes a while, as over a network. A request belongs to the round behind all rounds that
had ended when it began. So requests side by side are one round.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from durable_shuffle.shuffle.storage.local import LocalStorage

VERBS = ("read", "read_ranges", "put", "put_if_absent", "list", "folders", "delete")
_NETWORK_SECONDS = 0.03


class Rounds:
    """The rounds of the requests of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = threading.local()
        self.ended = 0
        """How many rounds have ended."""
        self.requests: list[tuple[int, str, str]] = []
        """Round, verb and key of each."""

    def call(self, verb: str, request: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if getattr(self._inside, "request", False):  # a verb made of others
            return request(*args, **more)
        self._inside.request = True
        with self._lock:
            number = self.ended + 1
            self.requests.append((number, verb, str(args[1])[-60:]))
        try:
            threading.Event().wait(_NETWORK_SECONDS)
            return request(*args, **more)
        finally:
            self._inside.request = False
            with self._lock:
                self.ended = max(self.ended, number)


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
