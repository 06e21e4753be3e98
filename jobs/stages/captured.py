"""Values that functions captured, and a word about one that makes a stage fresh in every run.

A run id, a time or a temporary folder in a closure rightly makes another stage each time. Whoever
did not mean it should hear of it: if nothing else differs from the last run's stage, the value is
named.
"""

import json
from collections.abc import Mapping

from durable_shuffle.jobs.identity.digests import hex_digest

CAPTURED = "captured"
"""The aspect of a stage's identity that lists the values, each by its digest."""
_CODE = ""
"""Under this name stands the code of the functions without the values."""
_FOLLOWS = frozenset({CAPTURED, "functions", "map"})
"""Aspects that differ wherever a captured value does."""
_DIGITS = 12
_MOST = 200
"""More values are not listed; they count all the same."""


def captured_text(values: Mapping[str, str], code: tuple[str, ...]) -> str:
    """Return the aspect's content; empty if there are no values."""
    if not values or len(values) > _MOST:
        return ""
    listed = {name: digest[:_DIGITS] for name, digest in values.items()}
    return json.dumps({**listed, _CODE: hex_digest(code)}, sort_keys=True)


def moved_values(wanted: Mapping[str, str], stored: Mapping[str, str]) -> tuple[str, ...]:
    """Return the captured values that alone keep a stage from being the stored one."""
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
"""In every such sentence."""


def moved_sentence(names: tuple[str, ...]) -> str:
    """What to say of these values, for people."""
    what = ", ".join(names)
    verb, it = ("differs", "it does") if len(names) == 1 else ("differ", "they do")
    return (
        f"only {what} {verb} {MOVED}. If {it} not decide rows (a run id, a time, "
        "a temporary folder), keep the function from using it; else this is a new stage each time"
    )
