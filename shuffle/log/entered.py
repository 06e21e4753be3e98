"""The proof, in a stage's own log, that the job log once counted it.

A writer that begins a stage, fills it and then enters it into the job log appends ENTERED before it
reports success and before it deletes what the stage replaces. If the job log loses the STAGE record
the stage looks merely begun: `gc` must not give it up, readers by name must not get an older one,
and `verify --repair` enters it again. Model: `tests/protocol_model/protocol/entered_model.py`.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Entered:
    """The job log holds STAGE of this stage, which was begun before."""

    KIND: ClassVar[str] = "ENTERED"
    record_id: str
