"""What `verify` says of a stage of log producers, from the records that it reads anyway."""

from dataclasses import dataclass

from durable_shuffle.jobs.inspect.producer_logs import log_status
from durable_shuffle.jobs.text import size
from durable_shuffle.serialization.control import bound
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.log.appender_log import APPENDER_RECORDS, End
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.storage.contract import MOST_BYTES, Storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.verify.report import StageVerdict


class LastRecords(CountingStorage):
    """Remembers the newest record read of every log; otherwise the storage it wraps."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self._last: dict[str, tuple[int, bytes]] = {}

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        data = super().read(key, most_bytes)
        prefix, _, slot = key.rpartition("/")
        if slot.isdecimal():
            found = int(slot), data
            self._last[prefix] = max(self._last.get(prefix, found), found)
        return data

    def has_ended(self, log: SlotLog) -> bool:
        """Return whether the newest record read of a log producer's log is an END for good."""
        slot, data = self._last.get(log.prefix.rstrip("/"), (0, b""))
        try:
            key = log.key(slot)
            record = APPENDER_RECORDS.decode(bound(data, key), key)
        except DurableShuffleError:
            return False  # a finding, or a log without records
        return isinstance(record, End) and record.mode != "SUSPEND"


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """What a verdict leaves out of a stage of log producers."""

    verdict: StageVerdict
    ended: int
    """Producers that will never append again."""

    @property
    def summary(self) -> str:
        """One sentence for people."""
        found = self.verdict
        status = log_status(self.ended, found.producers or 0)
        return f"{status}: {found.rows} rows, {size(found.checked_bytes)} checked"


def log_verdict(storage: LastRecords, verdict: StageVerdict) -> LogVerdict | None:
    """Return what is to be said of a stage that was verified; None of any but a log stage's.

    Args:
        storage: through which it was verified.
    """
    if verdict.status != "unsealed":
        return None
    try:
        stage = open_stage(storage, verdict.path)
    except DurableShuffleError:
        return None  # a finding
    if stage.describe.writing != "log":
        return None
    logs = map(stage.producer_log, range(stage.describe.producers))
    return LogVerdict(verdict, sum(map(storage.has_ended, logs)))
