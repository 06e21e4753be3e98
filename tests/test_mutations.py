"""Naive variants of the code are noticed by the tests: one of them always, all of them in soak."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "scripts" / "mutations.py"


def run(*options: str) -> list[str]:
    """Run the script; return its lines."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_every_variant_still_fits_the_code() -> None:
    """The text that a variant changes is there, once; the page names every variant."""
    lines = run("--check")
    page = (ROOT / "docs" / "internals" / "mutations.md").read_text()
    assert len(lines) > 30
    for line in lines:
        assert line in page
    assert "survived" not in page


def test_a_naive_variant_is_killed(seed: int) -> None:
    """One that the seed chooses, among those that take seconds."""
    words = random.Random(seed).choice(
        ["positions", "N16", "N8", "N22", "generation", "full acknowledgement forgets"]
    )
    lines = run("-k", words)
    assert lines
    assert all("killed by" in line for line in lines)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_all_naive_variants_are_killed() -> None:
    """Each alone, in a copy of the code."""
    assert all("killed by" in line for line in run())
