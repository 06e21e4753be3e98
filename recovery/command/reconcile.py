"""What runs against what should run, part by part. Pure.

Strategy: every source and consumer is described by a shape, which its data was stored by, and a
digest of everything else. The same digest: it is not touched. Another one under the same shape: it
is replaced and goes on where it was. Another shape: nothing is changed at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from durable_shuffle.serialization.errors import IncompatibleError


@dataclass(frozen=True, slots=True)
class Part:
    """One source or consumer, as it is described."""

    name: str
    shape: str
    """What stored data depends on, in words: kind, input, columns, keys, counts."""
    digest: str
    """Of the shape, the code, its values, the version; "" if it cannot be told: never the same."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What has to be done; names of parts, in the order of the description."""

    keep: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()
    start: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether everything stays as it is."""
        return not (self.replace or self.start or self.drop)


def changes(
    running: Mapping[str, Part],
    wanted: Mapping[str, Part],
    *,
    running_version: str,
    wanted_version: str,
) -> Changes:
    """Return how to get from one to the other.

    Raises:
        IncompatibleError: a part has another shape; names both versions. Nothing may be done.
    """
    for name, part in wanted.items():
        before = running.get(name)
        if before is not None and before.shape != part.shape:
            raise IncompatibleError(
                f"{name!r} does not fit what is stored: version {running_version!r} has "
                f"{before.shape}; version {wanted_version!r} has {part.shape}; give it another "
                "name, or put it back"
            )
    known = {name: part.digest for name, part in running.items() if part.digest}
    same = {name for name, part in wanted.items() if known.get(name) == part.digest}
    return Changes(
        keep=tuple(name for name in wanted if name in same),
        replace=tuple(name for name in wanted if name in running and name not in same),
        start=tuple(name for name in wanted if name not in running),
        drop=tuple(name for name in running if name not in wanted),
    )
