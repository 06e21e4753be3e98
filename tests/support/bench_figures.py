"""Figures of a recovery benchmark as they should be, for tests that change one of them."""

from durable_shuffle.bench.matrix.figures import Figures

GOOD = Figures(
    workload="W4", fault="F2", peer="durable", round=0, seconds=5.0, seconds_lost=0.5,
    fault_fired=True, evidence="2 of 10", maps=8, maps_again=0, reduces_again=0, bytes_rewritten=0,
    bytes_reread=10, map_bytes=50, rows_expected=100,
    rows_found=100, rows_differing=0, records_twice=0,
    records_missing=0, operations={"PUT": 16}, orphan_bytes=0, committed_again=0, detected=None,
)  # fmt: skip
