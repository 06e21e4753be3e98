"""Equal identity means equal observation: pairs of definitions, pickled and called elsewhere."""

from pathlib import Path

import pytest
from observed_definitions import pairs
from sent_functions import in_driver, in_worker

TURNED = ("masked array", "state setter")
"""Pickling turns these into other things: a fill value is set, the class is another one."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(2))
def test_equal_identity_means_equal_observation(tmp_path: Path, seed: int) -> None:
    """Each pair shows a difference in a worker, and so has two digests; in another process with
    another hash seed, and after pickling, each program has the same digest."""
    every = pairs(seed)
    programs = [text for _, *both in every for text in both]
    names = [name for name, *both in every for _ in both]
    one, two = in_driver(programs, tmp_path), in_driver(programs, tmp_path, "77")
    shown = in_worker(one, tmp_path)
    void, stale, moved = [], [], []
    for number, name in enumerate(names[::2]):
        first, second = shown[2 * number], shown[2 * number + 1]
        if first == second:
            void.append((name, first))
        elif one[2 * number].digest == one[2 * number + 1].digest:
            stale.append((name, first, second))
    for name, first, second in zip(names, one, two, strict=True):
        pickled = first.digest if any(turned in name for turned in TURNED) else first.unpickled
        if {second.digest, first.afterwards, pickled} != {first.digest}:
            moved.append(name)
    assert stale == []
    assert void == []
    assert moved == []
    assert {
        name: one.unresolved for name, one in zip(names, one, strict=True) if one.unresolved
    } == {}
