"""Data sets that a generator from PyPI makes once, and that are then taken from a folder.

A finished data set is recognised by its folder's name alone, because the folder gets its name only
when all is in it.
"""

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from durable_shuffle.serialization.errors import InvalidInputError

_LARGEST_SCALE = 100.0
"""Whoever writes more than this to a local folder has made a mistake."""


def made_once(cache: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Return folder `name` below `cache`, made if it is not there.

    Args:
        make: fills the folder that it is given, which does not exist yet.
    """
    wanted = cache / name
    if wanted.is_dir():
        return wanted
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="making-", dir=cache) as making:
        fresh = Path(making) / "data"
        make(fresh)
        try:
            fresh.rename(wanted)
        except OSError:
            if not wanted.is_dir():  # else somebody else made the same data meanwhile
                raise
    return wanted


def check_scale(scale: float) -> None:
    """Raise InvalidInputError for a scale factor that is out of range."""
    if not 0 < scale <= _LARGEST_SCALE:
        raise InvalidInputError(
            f"scale must be above 0 and at most {_LARGEST_SCALE}, found={scale}"
        )


def generator(program: str, extra: str) -> str:
    """Return the path of a generator, the one of this environment first.

    Args:
        extra: of this library; it installs the program.

    Raises:
        InvalidInputError: it is not installed.
    """
    found = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if found is None:
        raise InvalidInputError(
            f"{program} is not installed: pip install 'durable-shuffle[{extra}]' brings it"
        )
    return found
