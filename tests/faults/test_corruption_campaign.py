"""The corruption campaign: one object harmed, then everything that users do, trial by trial.

`damage_trial.py` does it in a process of its own; the oracle is a dictionary of the rows written.
No rows are wrong, every error is the library's own and names what is damaged, `verify` notices it.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from damaged_stores import FORGED, KINDS, UNKNOWABLE

ROOT = Path(__file__).resolve().parents[2]
HARMS = sorted({*KINDS, FORGED})
EVERYDAY, ALL = 12, 2000


def campaign(folder: Path, seed: int, count: int, *how: str, processes: int = 1) -> Counter[str]:
    """Run trials; return how many there were of each kind of object; fail with what went wrong.

    Each process has a share and tells of each trial in a file, for who cuts it off.
    """
    script = ROOT / "tests" / "support" / "damage_trial.py"
    path = os.pathsep.join([str(ROOT / "src"), str(script.parent)])
    share, running, said = count // processes, [], []
    for n in range(processes):
        said.append(folder / f"said-{n}.txt")
        place = [str(folder / f"share-{n}"), str(seed), str(n * share), str(share)]
        with said[-1].open("w") as out:
            command = [sys.executable, str(script), *place, *how]
            env = {**os.environ, "PYTHONPATH": path}
            running.append(subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT))
    ended = [process.wait() for process in running]
    lines = [line for file in said for line in file.read_text().splitlines()]
    trials = [json.loads(line) for line in lines if line.startswith('{"trial')]
    wrong = [json.dumps(one) for one in trials if one["problems"]]
    assert not wrong, "\n".join([f"{len(wrong)} of {len(trials)}; {seed=}", *wrong[:20]])
    assert len(trials) == count + processes, (ended, lines[-20:])
    return Counter(one["kind"] for one in trials if one["trial"] >= 0)


def test_a_sample_of_harms(tmp_path: Path, seed: int) -> None:
    """Every way of harm once, on objects of kinds that are drawn."""
    assert campaign(tmp_path, seed, EVERYDAY, ",".join(HARMS)).total() == EVERYDAY


@pytest.mark.soak
@pytest.mark.timeout(14_400)
def test_two_thousand_harms(tmp_path: Path, seed: int) -> None:
    """Every way of harm on every kind of object."""
    kinds = campaign(tmp_path, seed, ALL, ",".join(HARMS), processes=4)
    assert len(kinds) > 10, kinds


def test_what_nobody_can_know_is_told() -> None:
    """Each loss that `verify` is allowed to miss stands in the manual."""
    manual = " ".join((ROOT / "docs" / "internals" / "guarantees.md").read_text().split())
    for reason in UNKNOWABLE.values():
        assert reason in manual, reason
