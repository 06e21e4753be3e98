"""Time zones: the zone of this process, and the rules of all zones."""

import os
import time
import zoneinfo
from functools import cache
from pathlib import Path

from durable_shuffle.jobs.identity.digests import hex_digest

PACKAGES = ("tzdata", "pytz")
"""Packages that hold rules of zones."""
_RULES = ("tzdata.zi", "+VERSION", "leapseconds", "zone1970.tab", "zone.tab")
"""Files in a folder of zones that change with the rules."""


def zone_of_process() -> str:
    """Return the zone of this process, which Python workers take over.

    What Spark sets for workers (`spark.executorEnv.TZ`) counts with each function.
    """
    return repr([os.environ.get("TZ"), time.tzname, time.timezone, time.altzone])


def rules_of_zones() -> str:
    """Return a text that changes with the system's rules of zones."""
    return _rules_in(zoneinfo.TZPATH)


@cache
def _rules_in(folders: tuple[str, ...]) -> str:
    found = []
    for folder in folders:
        for name in _RULES:
            path = Path(folder, name)
            if path.is_file():
                found.append(hex_digest([name, path.read_bytes()]))
    return repr(found)
