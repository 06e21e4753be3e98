"""Memory of a worker that maps and reduces, in a process of its own: bounded, whatever the data."""

import subprocess
import sys
from pathlib import Path

import pytest

PROCESS = Path(__file__).parent / "stage_memory_process.py"
WRITER_MIB = 16
"""As in the process."""


def peaks(folder: Path, batches: int, reducer: str) -> tuple[float, float]:
    """Return MiB above an idle worker, after the map and after the reduce."""
    folder.mkdir()
    command = [sys.executable, str(PROCESS), str(folder), str(batches), reducer]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    mapped, reduced = map(float, done.stdout.split())
    return mapped, reduced


@pytest.mark.timeout(300)
def test_ten_times_the_data_takes_no_more_memory(tmp_path: Path) -> None:
    """The peak stays within three times `writer_memory_bytes` and 64 MiB, and does not grow.

    The allocator's luck makes some 10 MiB from run to run, so each size runs twice and the smaller
    peak counts: memory that the data needs is needed in both.
    """
    small, large = (
        [min(pair) for pair in zip(*runs, strict=True)]
        for runs in (
            [peaks(tmp_path / f"{size}-{n}", size, "generator") for n in range(2)]
            for size in (48, 480)
        )
    )
    for before, after in zip(small, large, strict=True):
        assert after <= 3 * WRITER_MIB + 64
        assert after <= 1.1 * before


@pytest.mark.timeout(300)
def test_groups_larger_than_memory_stay_on_scratch(tmp_path: Path) -> None:
    """Twelve times the memory for reducing goes through scratch within the same bound."""
    _, reduced = peaks(tmp_path / "grouped", 384, "grouped")
    assert reduced <= 3 * WRITER_MIB + 64
