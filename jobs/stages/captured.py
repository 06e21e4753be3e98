"""Values that functions captured, and a warning about a value that makes every run start fresh.

A run id, a time or a temporary folder in a closure makes a new stage in each run, and must: the
value may decide rows. The user may not have meant it. So if only captured values differ from the
last run's stage, a warning names them.
"""

import json
from collections.abc import Mapping

from durable_shuffle.jobs.identity.digests import hex_digest

CAPTURED = "captured"
"""The component of a stage's identity that lists the values, each by its digest."""
_CODE = ""
"""The listed name of the functions' code, without the values."""
_FOLLOWS = frozenset({CAPTURED, "functions", "map"})
"""Components that differ whenever a captured value differs."""
_DIGITS = 12
_MOST = 200
"""With more values, none are listed. They are part of the fingerprint all the same."""


def captured_text(values: Mapping[str, str], code: tuple[str, ...]) -> str:
    """Return the content of the component; "" if there are no values, or too many to list."""
    if not values or len(values) > _MOST:
        return ""
    listed = {name: digest[:_DIGITS] for name, digest in values.items()}
    return json.dumps({**listed, _CODE: hex_digest(code)}, sort_keys=True)


def moved_values(wanted: Mapping[str, str], stored: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the captured values, if they are all that differs from the stored stage.

    Args:
        wanted: components of the stage that this run asks for.
        stored: components of a stored stage.
    """
    differing = {k for k in {*wanted, *stored} if wanted.get(k) != stored.get(k)}
    if CAPTURED not in differing or not differing <= _FOLLOWS:
        return ()
    if CAPTURED not in wanted or CAPTURED not in stored:
        return ()
    now, then = json.loads(wanted[CAPTURED]), json.loads(stored[CAPTURED])
    if now.keys() != then.keys() or now[_CODE] != then[_CODE]:
        return ()
    return tuple(name for name in sorted(now) if now[name] != then[name])


MOVED = "from the last run's stage"
"""Part of every sentence that `moved_sentence` returns; the report finds the sentence by it."""


def moved_sentence(names: tuple[str, ...]) -> str:
    """Return the warning about these values, for people."""
    what = ", ".join(names)
    verb, it = ("differs", "it does") if len(names) == 1 else ("differ", "they do")
    return (
        f"only {what} {verb} {MOVED}. If {it} not decide rows (a run id, a time, "
        "a temporary folder), keep the function from using it; else this is a new stage each time"
    )
