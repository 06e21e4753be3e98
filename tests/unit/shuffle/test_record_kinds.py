"""The name of a stored record says which record it is, in whatever log it stands."""

import re
from collections import defaultdict
from pathlib import Path

import durable_shuffle

FOLDERS = ("shuffle", "recovery", "jobs", "serialization")
SAME_MEANING = {"OPEN"}
"""Two records, one meaning: whoever wins it fences all that opened the log before."""
KIND = re.compile(r'^    KIND: ClassVar\[str\] = "(\w+)"$', re.MULTILINE)


def test_a_kind_is_one_record() -> None:
    """No two classes share a kind, but for those that mean the same."""
    found: dict[str, list[Path]] = defaultdict(list)
    for folder in FOLDERS:
        for path in Path(durable_shuffle.__file__).parent.joinpath(folder).rglob("*.py"):
            for kind in KIND.findall(path.read_text()):
                found[kind].append(path)
    assert len(found) > 50
    assert {kind for kind, files in found.items() if len(files) > 1} == SAME_MEANING
