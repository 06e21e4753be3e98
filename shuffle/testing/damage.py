"""Damage to files behind a storage's back, for tests of whoever should notice it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def changed(path: Path, change: Callable[[bytearray], object]) -> Iterator[None]:
    """Change a file for the time of a block; `change` alters the bytes in place."""
    before = path.read_bytes()
    after = bytearray(before)
    change(after)
    if bytes(after) == before:
        raise AssertionError(f"nothing was changed: {path}")
    path.write_bytes(after)
    try:
        yield
    finally:
        path.write_bytes(before)


def flip(at: int, bit: int) -> Callable[[bytearray], None]:
    """Return a change of one bit: `bit` 0 to 7 of the byte at offset `at`."""

    def change(data: bytearray) -> None:
        data[at] ^= 1 << bit

    return change
