"""The views of this process, so that a superseded one learns of it at once.

Only a short cut: what fences is the consumer's log. Views are held weakly, so nothing survives the
task that made them. There is no lock: every view adds itself before it looks at the others, so of
any two at least one sees the other, and the older one stops.
"""

import os
import weakref
from collections.abc import Iterator

from durable_shuffle.shuffle.consume.view import View

_Key = tuple[int, str, str]
_LIVE: dict[int, tuple[_Key, "weakref.ref[View]"]] = {}


def _key(view: View) -> _Key:
    return os.getpid(), view.task.storage.description, view.task.path.log_prefix


def live_views(description: str, log_prefix: str) -> Iterator[View]:
    """Yield this process's views of one consumer task that are not fenced."""
    for key, reference in list(_LIVE.values()):  # in one step; a tuple would not be
        if key != (os.getpid(), description, log_prefix):  # a fork inherits views, not their rights
            continue
        view = reference()
        if view is not None and not view.task.held.fenced:
            yield view


def add_view(view: View) -> None:
    """Register a view whose OPEN was won, and take every older one of its consumer out of service.

    If a newer one is there already, it is `view` that goes out of service.
    """
    number = id(view)
    _LIVE[number] = _key(view), weakref.ref(view, lambda _: _LIVE.pop(number, None))
    views = list(live_views(*_key(view)[1:]))
    newest = max((v.epoch for v in views), default=view.epoch)
    for other in views:
        if other.epoch < newest:
            other.task.held.fence(f"epoch {newest} was opened in the same process")


def forget_views() -> None:
    """Act as a process that has just begun, for tests: what fences is the log alone."""
    _LIVE.clear()
