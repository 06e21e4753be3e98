"""The views of this process, so that a superseded view learns of it at once.

This is only a shortcut: the consumer's log does the fencing. Views are held by weak references, so
they do not outlive the task that made them. No lock is needed: every view adds itself before it
looks at the others. So of any two views at least one sees the other, and the older one stops.
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
    for key, reference in list(_LIVE.values()):  # `list` copies in one step, `tuple` does not
        if key != (os.getpid(), description, log_prefix):  # a fork must not use its parent's views
            continue
        view = reference()
        if view is not None and not view.task.held.fenced:
            yield view


def add_view(view: View) -> None:
    """Register a view whose OPEN was won, and fence every older view of the same consumer task.

    If a newer view is registered already, fence `view` instead.
    """
    number = id(view)
    _LIVE[number] = _key(view), weakref.ref(view, lambda _: _LIVE.pop(number, None))
    views = list(live_views(*_key(view)[1:]))
    newest = max((v.epoch for v in views), default=view.epoch)
    for other in views:
        if other.epoch < newest:
            other.task.held.fence(f"epoch {newest} was opened in the same process")


def forget_views() -> None:
    """Forget all views, as in a new process; for tests in which only the log may fence."""
    _LIVE.clear()
