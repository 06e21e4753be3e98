"""The set of a stage's declared consumers, as REGISTER records follow each other in its log."""

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.records import Register


def set_behind(standing: Register | None, record: Register, name: str) -> Register:
    """Return `record` if it may follow the REGISTER that stands: the set grows, and stays closed.

    Whoever is left out would lose data that it has not read.

    Args:
        name: key of the record, for messages.

    Raises:
        CorruptDataError: it leaves out a consumer, or opens a closed set.
    """
    if standing is not None:
        lost = sorted(set(standing.consumers).difference(record.consumers))
        if lost or (standing.closed and not record.closed):
            raise CorruptDataError(
                f"a stage's set of consumers grows and stays closed: {name!r} leaves out "
                f"{', '.join(lost) or 'nobody and opens it'}; run verify"
            )
    return record
