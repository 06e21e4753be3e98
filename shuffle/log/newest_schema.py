"""In which schema an appender's newest rows are stored."""

from durable_shuffle.serialization.arrow_schemas import later_schema
from durable_shuffle.shuffle.log.appender_log import Append, AppenderTail, appender_log
from durable_shuffle.shuffle.log.stage import StageHandle


def newest_schema(stage: StageHandle, producer: int, tail: AppenderTail) -> bytes:
    """Return the schema message of the rows that were appended last, else the stage's.

    Raises:
        CorruptDataError: it does not fit the stage's; names the APPEND.
    """
    log = appender_log(stage.producer_log(producer))
    slot, record = tail.next_slot - 1, tail.last
    while record is not None and not isinstance(record, Append):
        slot -= 1
        record = log.record(slot) if slot >= 0 else None
    if record is None or not record.schema:
        return stage.describe.schema
    later_schema(record.schema, stage.schema, name=log.key(slot))
    return record.schema
