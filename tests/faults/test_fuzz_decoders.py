"""Every decoder of stored bytes, fuzzed in a process of its own: it parses or refuses.

Memory is limited from the start of each process; a decoder that meets the limit has failed. Inputs
that fail are left in the test's folder.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EVERYDAY, ALL, COVERED = 30_000, 10_000_000, 1_000_000


def fuzz(folder: Path, seed: int, count: int, *more: str) -> str:
    """Return what the process said; fail with its findings if there are any."""
    script = ROOT / "tests" / "support" / "fuzz_process.py"
    path = os.pathsep.join([str(ROOT / "src"), str(script.parent)])
    env = {**os.environ, "PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    command = [sys.executable, str(script), str(folder), str(seed), str(count), *more]
    with (folder / "said.txt").open("w+") as said:
        done = subprocess.run(
            command, env=env, stdout=said, stderr=subprocess.PIPE, text=True, check=False
        )
    text = (folder / "said.txt").read_text()
    found = sorted((folder / "failures").glob("*.txt"))
    assert not found, "\n".join(path.read_text()[:1500] for path in found)
    where = f"{folder}/input holds the last input: {text[-500:]} {done.stderr[-1500:]}"
    assert done.returncode == 0, where
    return text


def inputs(said: str) -> tuple[int, int]:
    """Return how many inputs were decoded and how many of them were parsed."""
    figures = re.findall(r"inputs=(\d+) parsed=(\d+)", said)
    assert figures, said
    return int(figures[-1][0]), int(figures[-1][1])


def test_each_decoder_parses_or_refuses(tmp_path: Path, seed: int) -> None:
    """A sample: no other error, no crash, no memory beyond the limit; both answers occur."""
    ran, parsed = inputs(fuzz(tmp_path, seed, EVERYDAY))
    assert ran == EVERYDAY
    assert EVERYDAY // 10 < parsed < EVERYDAY * 9 // 10, (
        "the mutator changes too much or too little"
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bad", ["foreign", "memory", "crash", "bomb"])
def test_the_fuzzer_sees_what_it_looks_for(tmp_path: Path, seed: int, bad: str) -> None:
    """A decoder that raises something else, takes too much, or dies is a failure."""
    expected = {"crash": "holds the last input", "bomb": "ArrowMemoryError|malloc"}
    with pytest.raises(AssertionError, match=expected.get(bad, bad)):
        fuzz(tmp_path, seed, 50, "--targets", f"self-test {bad}")
    assert (tmp_path / "input").exists()


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_ten_million_inputs(tmp_path: Path, seed: int) -> None:
    """The same, ten million inputs."""
    ran, _ = inputs(fuzz(tmp_path, seed, ALL))
    assert ran == ALL


@pytest.mark.soak
@pytest.mark.timeout(14_400)
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="needs atheris")
def test_a_million_inputs_with_coverage_feedback(tmp_path: Path, seed: int) -> None:
    """libFuzzer keeps what reaches new code and goes on from there."""
    ran, _ = inputs(fuzz(tmp_path, seed, COVERED, "--coverage"))
    assert ran == COVERED
