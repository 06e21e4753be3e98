"""The settings under which a stage was planned, as its description holds them.

They are set on a session of Spark, so nothing but what this library records may come through, and
no value that such a setting cannot have: another setting could change what rows a plan yields.
"""

import re

from durable_shuffle.jobs.engine.transfer import TRANSFER_KEYS
from durable_shuffle.jobs.identity.plan.settings import SPLIT_SETTINGS
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.stage import StageHandle

_OWN = "spark.durableShuffle."
"""Settings that begin like this mean something to this library alone, which checks them itself."""
_SPARKS = frozenset({*SPLIT_SETTINGS, *TRANSFER_KEYS})
_BYTES = re.compile(r"0*([0-9]{1,18}b?|[0-9]{1,9}[kmg]b?|[0-9]{1,6}tb?|[0-9]{1,3}pb?)")
"""What Spark reads as a number of bytes below 2**63."""
_COUNT = re.compile(r"\+?0*[1-9][0-9]{0,9}")


def recorded_settings(stage: StageHandle) -> dict[str, str]:
    """Return the settings that a stage was planned with; keys that nobody records are left out.

    Raises:
        CorruptDataError: a value is none of such a setting; names the record.
    """
    planning = stage.describe.planning
    sparks = {key: value for key, value in planning.items() if key in _SPARKS}
    for key, value in sparks.items():
        if not _fits(key, value.strip().lower()):
            raise CorruptDataError(
                f"a stage cannot have been planned with {key}={value!r:.100}: "
                f"{stage.log().key(0)!r}"
            )
    return sparks | {key: value for key, value in planning.items() if key.startswith(_OWN)}


def _fits(key: str, value: str) -> bool:
    if "Bytes" in key:
        return _BYTES.fullmatch(value) is not None
    return _COUNT.fullmatch(value) is not None and int(value) < 1 << 31
