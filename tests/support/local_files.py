"""What tests of local storage share: what lies below a folder, calls that fail."""

import os
from collections.abc import Callable
from pathlib import Path


def files_below(folder: Path) -> list[str]:
    """Every file, hidden ones too."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def fail_with(number: int) -> Callable[..., None]:
    """Return a stand-in for a system call that fails with this errno."""

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail
