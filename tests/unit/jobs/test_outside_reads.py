"""What code names in libraries: what only computes is recognised, everything else is named."""

import time
from pathlib import Path
from typing import Any

import pytest
from function_names import FORMS, ORDINARY, READS, forms, lines_of

from durable_shuffle.jobs.identity.functions import zones
from durable_shuffle.jobs.identity.functions.identity import FunctionIdentity, identify_function


def identity(source: str) -> FunctionIdentity:
    """The identity of the function f of a script."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "somewhere.py", "exec"), space)
    return identify_function(space["f"])


def unresolved(source: str) -> tuple[str, ...]:
    """Why the function f of a script is not recognised."""
    return identity(source).unresolved


@pytest.mark.parametrize("form", FORMS)
def test_ordinary_functions_are_recognised(form: str) -> None:
    """More than 150 expressions of data engineering, in each form of import."""
    lines = lines_of(ORDINARY)
    assert len(lines) >= 150
    wrong = {}
    for imports, expression in lines:
        reasons = unresolved(dict(forms(imports, expression))[form])
        if reasons:
            wrong[expression] = reasons
    assert wrong == {}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_what_reads_is_named(form: str) -> None:
    """More than 90 expressions that read the clock, files, services, random numbers and others."""
    lines = lines_of(READS)
    assert len(lines) >= 90
    if form == "from":  # then workers get a list of the driver's by value, which counts
        lines = [line for line in lines if line[1] not in ("sys.argv[0]", "sys.path[0]")]
    texts = {expression: dict(forms(imports, expression))[form] for imports, expression in lines}
    assert [expression for expression, text in texts.items() if not unresolved(text)] == []


def test_methods_of_objects_that_another_function_made() -> None:
    """A helper that is handed a path reads; its methods are asked though it names no module."""
    helper = "def g(p): return p.{}\n"
    caller = "import pathlib\ndef f(x): return g(pathlib.Path(x))\n"
    assert unresolved(helper.format("exists()") + caller) == ("g reads files (.exists())",)
    assert unresolved(helper.format("stem, p.with_suffix('.b'), p.group(1)") + caller) == ()
    assert unresolved(helper.format("exists()") + "def f(x): return g(x)\n") == ()


AT_ZONE = (
    "import datetime\ndef f(x): return datetime.datetime.fromtimestamp(x)\n",
    "def f(x): return x.astimezone().isoformat()\n",
    "import time\ndef f(x): return time.mktime(x)\n",
    "from time import localtime\ndef f(x): return localtime(x)\n",
    "def f(x): return x.timestamp()\n",
)


def test_zone_counts_where_code_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another zone of the process changes what asks for it, and nothing else."""
    sources = [*AT_ZONE, "def f(x): return x.total_seconds()\n"]
    found = []
    try:
        for zone in ("UTC", "Asia/Tokyo"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            found.append([identity(source).digest for source in sources])
    finally:
        monkeypatch.undo()
        time.tzset()
    same = [one == two for one, two in zip(*found, strict=True)]
    assert same == [False] * len(AT_ZONE) + [True]


def test_rules_of_zones_count_where_code_asks_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Other rules of the system's zones change what names a zone, and nothing else."""
    sources = [
        "import zoneinfo\ndef f(x): return x.replace(tzinfo=zoneinfo.ZoneInfo('Europe/Paris'))\n",
        "def f(x): return x.dt.tz_convert('Europe/Paris')\n",
        "def f(x): return x.dt.floor('D')\n",
    ]
    found = []
    for text in ("# version 2026a", "# version 2026b"):
        folder = tmp_path / text[-1]
        folder.mkdir()
        (folder / "tzdata.zi").write_text(text)
        monkeypatch.setattr(zones.zoneinfo, "TZPATH", (str(folder),))
        found.append([identity(source).digest for source in sources])
    assert [one == two for one, two in zip(*found, strict=True)] == [False, False, True]


def test_task_context_is_named_but_for_the_partition() -> None:
    """The number of the partition follows from the plan; properties and tries do not."""
    start = "from pyspark import TaskContext\ndef f(x):\n    c = TaskContext.get()\n    return "
    assert unresolved(f"{start}c.partitionId()\n") == ()
    for text in ("c.getLocalProperty('a')", "c.partitionId(), c.attemptNumber()", "str(c)"):
        assert any("TaskContext" in reason for reason in unresolved(f"{start}{text}\n"))
