"""A disk that fills up in mid-write: a typed error, nothing committed, the space given back.

The disk is a real file system of three megabytes, mounted in a mount namespace of the test's own
process; where that is not permitted, the storage says that it is full.
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("disk_full_process.py")
MOUNT = 'mount -t tmpfs -o size=3m none "$1" && shift && exec "$@"'


def in_small_disk(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a file system of 3 MB over `folder`, which nobody else sees."""
    wrapped = ["unshare", "-m", "sh", "-c", MOUNT, "sh", str(folder), *command]
    return subprocess.run(wrapped, capture_output=True, text=True, timeout=120)


@cache
def mount_permitted(folder: Path) -> bool:
    """Whether this process may mount."""
    try:
        return in_small_disk(folder, "true").returncode == 0
    except FileNotFoundError:  # no unshare
        return False


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("place", "kind"), [("segment", "real"), ("commit", "real"), ("segment", "simulated")]
)
def test_producer_meets_a_full_disk_and_later_succeeds(
    tmp_path: Path, place: str, kind: str
) -> None:
    """UnavailableError that says what to do; then the same rows come and no space is lost.

    An attempt that fails in a segment gives its space back at once. One whose COMMIT was refused
    keeps its segments until a cleaner has aborted it: failure alone is no reason to delete.
    """
    kind = kind if mount_permitted(tmp_path) else "simulated"
    command = (sys.executable, str(SCRIPT), str(tmp_path), place, kind)
    if kind == "real":
        done = in_small_disk(tmp_path, *command)
    else:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    print(seen)
    assert seen["error"] == "UnavailableError"
    assert "no space left" in seen["message"]
    assert "free space" in seen["message"]
    assert seen["records"] == []
    if place == "segment":
        assert seen["used_after"] == seen["used_before"]
        if seen["kind"] == "real":
            assert seen["free_lost"] == 0
    else:
        assert seen["used_after"] > seen["used_before"] + 4 * 300_000
    if seen["kind"] == "real":
        assert list(tmp_path.iterdir()) == []  # all of it was on the small disk
    assert seen["won"]
    assert seen["segments"] == 4
    assert seen["right"] == [True] * 4
