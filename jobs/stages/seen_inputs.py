"""Remembers the inputs that `version=` vouched for in this session, and refuses a mix-up.

A plan over an RDD or a checkpointed DataFrame says little about its rows. If the user vouches for
it, its fingerprint comes from that little and the version. A second, different input with the same
fingerprint would get the rows of the first, so it is refused.
"""

import threading
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from durable_shuffle.jobs.deploy.ship import is_connect
from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.plan.rdd_chain import MICRO_BATCH_ELSEWHERE
from durable_shuffle.jobs.stages.identity import StageIdentity
from durable_shuffle.serialization.errors import InvalidInputError

_lock = threading.Lock()
_seen: WeakKeyDictionary[object, dict[tuple[str, ...], str]] = WeakKeyDictionary()
"""Per Spark application: place, name and fingerprint -> digest of what distinguishes the input."""


class SeenInputs:
    """The vouched inputs of one job.

    Args:
        spark: any session of the application; on Spark Connect each session counts alone.
        place: storage and name of the job.
    """

    def __init__(self, spark: SparkSession, place: Sequence[str]) -> None:
        self._application: object = spark if is_connect(spark) else spark.sparkContext
        self._place = tuple(place)

    def check(self, name: str, identity: StageIdentity, *, remember: bool = True) -> None:
        """Refuse an input if a different one has the same fingerprint.

        Args:
            remember: record this input for its fingerprint, if it is the first.

        Raises:
            InvalidInputError: another input of this session has the same fingerprint, or one
                version would vouch for every micro-batch of a stream.
        """
        if any(MICRO_BATCH_ELSEWHERE in reason for reason in identity.vouched):
            raise InvalidInputError(
                f"{name}: {MICRO_BATCH_ELSEWHERE}, cannot be vouched for by version=, which would "
                "be that of every batch: make this call in that thread, or in one started with "
                "pyspark.inheritable_thread_target"
            )
        if not identity.opaque:
            return
        told = hex_digest(identity.opaque)
        key = (*self._place, name, identity.fingerprint)
        with _lock:
            known = _seen.setdefault(self._application, {})
            before = known.setdefault(key, told) if remember else known.get(key, told)
        if before != told:
            raise InvalidInputError(
                f"{name}: version= vouches for two different inputs of this session that nothing "
                f"else tells apart ({'; '.join(identity.vouched)}): give each call a version= or "
                "a name= of its own"
            )
