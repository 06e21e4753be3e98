"""What a view did so far, as an immutable value."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ViewStatistics:
    """Figures of one view."""

    epoch: int
    records_delivered: int
    records_acknowledged: int
    """By this view."""
    records_dropped: int
    """Approximate mode: delivered to views of this consumer and never acknowledged, in sum."""
    dropped_exact: bool
    """False if `records_dropped` is an upper bound."""
    bytes_trimmed: int
    """Bytes of partial records that were cut off for this view."""
    in_flight_bytes: int
    """Bytes fetched, or being fetched, and not done with."""
