"""Which packages a Python has: this one, or another that has what does not go together with it."""

import importlib.metadata
import json
import re
import subprocess
import sys
from functools import cache

_CODE = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


@cache
def version(package: str, python: str = sys.executable) -> str | None:
    """Return the version of a distribution, or None if that Python does not have it.

    Raises:
        OSError: there is no such program; CalledProcessError: it is not a Python.
    """
    if python == sys.executable:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None
    command = [python, "-c", _CODE, package]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: str | None = json.loads(done.stdout)[package]
    return found


def below(version_text: str, limit: tuple[int, ...]) -> bool:
    """Return whether a version is older than a limit, by its leading numbers."""
    parts = version_text.split(".")[: len(limit)]
    found = (re.match(r"\d+", part) for part in parts)
    return tuple(int(number[0]) if number else 0 for number in found) < limit
