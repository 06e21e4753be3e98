"""The figures of a view, as an immutable value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ViewStatistics:
    """Figures of one view."""

    epoch: int
    records_delivered: int
    records_acknowledged: int
    """Records acknowledged by this view."""
    records_dropped: int
    """In approximate mode, records that all views of this consumer dropped: delivered, or perhaps
    delivered, but never acknowledged."""
    dropped_exact: bool
    """False if `records_dropped` is an upper bound."""
    bytes_trimmed: int
    """Bytes of partial records that were cut off for this view."""
    in_flight_bytes: int
    """Bytes that are being fetched, or were fetched and are still in use."""
