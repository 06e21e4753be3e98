"""The job log's records together, and its codec."""

from typing import get_args

from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.shuffle.log.records import (
    Claim,
    Closed,
    StageBegun,
    StageReleased,
    StageUse,
)

JobRecord = Claim | StageBegun | StageUse | StageReleased | Closed
JOB_RECORDS: RecordCodec[JobRecord] = RecordCodec(get_args(JobRecord))
