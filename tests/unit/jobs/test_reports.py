"""Reports as a real browser shows them: no complaint, nothing fetched, all that happened."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import open_page

from durable_shuffle.bench.matrix.figures import Figures, summaries
from durable_shuffle.bench.pages.recovery_page import recovery_page
from durable_shuffle.jobs.reports.drawing import legend, timeline_svg
from durable_shuffle.jobs.reports.job_history import read_history
from durable_shuffle.jobs.reports.job_page import job_page
from durable_shuffle.jobs.reports.timeline import Bar, Mark, Timeline
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.storage.local import LocalStorage

BEGAN = 1_700_000_000.0
FIGURES = Figures(
    workload="W4", fault="F2", peer="durable", round=0, seconds=5.0, seconds_lost=0.5,
    fault_fired=True, evidence="2 of 10", maps=8, maps_again=0, reduces_again=0, bytes_rewritten=0,
    bytes_reread=10, map_bytes=50, rows_expected=100, rows_found=100, rows_differing=0,
    records_twice=0, records_missing=0, operations={"PUT": 16, "GET": 9, "LIST": 1, "DELETE": 0},
    orphan_bytes=0, committed_again=0, detected=None,
)  # fmt: skip
KILLED = Timeline(
    "W4 F2 durable",
    5.0,
    5.0,
    ("executor <1>", "executor 2"),
    (
        Bar("executor <1>", "map", "map 0", 0.0, 1.0, "reused"),
        Bar("executor <1>", "reduce", "reduce 0", 1.0, 2.0, "lost"),
        Bar("executor 2", "reduce", "reduce 0", 2.5, 5.0, "retry"),
    ),
    (Mark(2.0, "SIGKILL & more", "executor <1>"),),
)


@pytest.fixture
def document() -> dict[str, Any]:
    """Of a benchmark with one killed run."""
    calm = replace(FIGURES, fault="F0", seconds_lost=None, seconds=4.5)
    drawn = {"workload": "W4", "fault": "F2", "peer": "durable", **KILLED.to_dict()}
    return {
        "command": "durable-shuffle bench recovery",
        "date_wall_seconds": BEGAN,
        "machine": "2 cores",
        "scale": 0.5,
        "seed": 7,
        "rounds": 1,
        "schedule": ["kill schedule, --seed 7:", "  round 0 W4 F2"],
        "refused": [{"cell": "W4 F3 durable", "why": "only <W5>"}],
        "failures": [],
        "peers": [
            {
                "name": "ess",
                "title": "with <its> service",
                "versions": "pyspark 9.9.9",
                "settings": {"spark.shuffle.service.enabled": "true"},
            }
        ],
        "summary": [s.to_dict() for s in summaries([calm, FIGURES])],
        "timelines": [drawn],
    }


def test_a_kill_is_seen(document: dict[str, Any], tmp_path: Path) -> None:
    """A killed run, through JSON and a browser: the kill, what died, what was reused."""
    page = tmp_path / "page.html"
    page.write_text(recovery_page(json.loads(json.dumps(document))), encoding="utf-8")
    assert not re.findall(r"""(?:src|href)=["'](?!data:)|@import|url\(""", page.read_text())
    opened = open_page(page, picture=tmp_path / "page.png")
    assert opened.complaints == []
    outcomes = re.findall(r'data-outcome="(\w+)"', opened.dom)
    assert sorted(outcomes) == ["lost", "retry", "reused"]
    assert opened.dom.count('data-mark="fault"') == 1
    assert "SIGKILL &amp; more, at 2.00 s, executor &lt;1&gt;" in opened.dom
    assert "only &lt;W5&gt;" in opened.dom
    for told in ("with &lt;its&gt; service", "pyspark 9.9.9", "How to add a system"):
        assert told in opened.dom
    assert "spark.shuffle.service.enabled=true" in opened.dom
    assert (tmp_path / "page.png").stat().st_size > 20_000


def test_a_failed_check_is_seen(document: dict[str, Any]) -> None:
    """What failed stands at the top, not the praise."""
    good = recovery_page(document)
    bad = recovery_page({**document, "failures": ["round 0: the fault did not fire"]})
    assert "every fault fired, all rows" in good
    assert "every fault fired, all rows" not in bad
    assert "the fault did not fire" in bad


def test_equal_seconds_are_equally_long() -> None:
    """Drawings with one scale can be compared: a second has the same width in both."""
    shorter = replace(KILLED, seconds=2.5, bars=KILLED.bars[:1], marks=())
    widths = [
        re.search(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)"', timeline_svg(line, 5.0))
        for line in (KILLED, shorter)
    ]
    assert widths[0] is not None
    assert widths[1] is not None
    assert widths[0][1] == widths[1][1]


def test_bars_are_wide_enough_to_be_hit() -> None:
    """A task of no length at all has six pixels; only what occurs has an entry and a swatch."""
    short = replace(KILLED, bars=tuple(replace(b, end=b.start) for b in KILLED.bars))
    widths = re.findall(r'<rect x="[\d.]+" y="[\d.]+" width="([\d.]+)"', timeline_svg(short))
    assert len(widths) == 3
    assert min(map(float, widths)) >= 6
    maps = replace(KILLED, bars=KILLED.bars[:1], marks=())
    key = legend([maps])
    assert key.count("<span>") == key.count("<i ") == 1
    assert legend([KILLED]).count("<i ") == 3 + 2 + 1, "outcomes, phases, the fault"


def test_a_broken_page_is_noticed(tmp_path: Path) -> None:
    """The browser's complaints reach the tests: otherwise none of these could fail."""
    page = tmp_path / "broken.html"
    page.write_text("<html><body><script>nowhere();</script></body></html>")
    (complaint,) = open_page(page).complaints
    assert "nowhere is not defined" in complaint


def test_a_users_job(tmp_path: Path, job: Any, run: Callable[..., Any]) -> None:
    """A stage that a second driver took up, one that is not sealed, at the times of the storage."""
    second = JobLog.claim(LocalStorage(job.url), "nightly", RandomIds().new_id())
    path = job.orders.path
    use = StageUse(RandomIds().new_id(), 2, path.name, path.fingerprint, path.incarnation)
    second.append(use)
    root = Path(job.url)
    for file in sorted(p for p in root.rglob("*") if p.is_file()):
        os.utime(file, (BEGAN, BEGAN))
    for slot in (4, 5):  # two slots of the first driver's three stages, one of its claim
        os.utime(root / "nightly" / "log" / f"{slot:010d}", (BEGAN + 60, BEGAN + 60))
    for producer in (1, 2):
        commit = root / job.unsealed.path.producer_log_prefix(producer) / f"{0:010d}"
        os.utime(commit, (BEGAN + 10 * producer, BEGAN + 10 * producer))

    history = read_history(LocalStorage(root), "nightly")
    assert history.drivers == ((BEGAN, 1), (BEGAN + 60, 2))
    orders, _, unsealed = history.stages
    assert orders.uses == [(BEGAN, 1), (BEGAN + 60, 2)]
    assert orders.sealed == BEGAN
    assert [(a.producer, a.fate) for a in orders.attempts] == [(p, "counts") for p in range(3)]
    assert unsealed.sealed is None
    assert {a.producer: a.last - BEGAN for a in unsealed.attempts} == {1: 10.0, 2: 20.0}

    page = tmp_path / "job.html"
    result = run("report", f"{job.url}/nightly", "--html", page)
    assert result.exit_code == 0
    line = "orders, hash by id: 3 of 3 map tasks stored, 0 run again, stored, drivers 1, 2"
    assert line in result.stdout
    assert run("report", job.url, "nightly", "--json").exit_code == 0
    opened = open_page(page)
    assert opened.complaints == []
    outcomes = re.findall(r'data-outcome="(\w+)"', opened.dom)
    assert outcomes.count("reused") == 3
    assert outcomes.count("done") == 5
    assert opened.dom.count('data-mark="note"') == 2


def test_a_wrong_job_url(job: Any, run: Callable[..., Any]) -> None:
    """It says which jobs there are, or that there is no job in the URL."""
    result = run("report", f"{job.url}/nightlie")
    assert result.exit_code == 2
    assert "nightly" in result.stderr
    assert run("report", "nightly").exit_code == 2
    for url in (job.url, f"{job.url}/"):
        result = run("report", url)
        assert result.exit_code == 2
        assert f"holds 1 job; did you mean `report {url} nightly`?" in result.stderr


def test_what_a_second_driver_and_a_compaction_did(job: Any, run: Callable[..., Any]) -> None:
    """Who used what again is told without any failure; a compaction and a repair are seen."""
    storage, path = LocalStorage(job.url), job.orders.path
    assert run("compact", job.url, "nightly", "orders").exit_code == 0
    segment = min((Path(job.url) / path.segments_prefix).rglob("p000002-*.seg"))
    segment.write_bytes(b"damaged")
    assert run("verify", job.url, "nightly", "--repair").exit_code == 0
    (Path(job.url) / path.segment_key(0, "c" * 32, 0)).parent.mkdir(exist_ok=True)
    (Path(job.url) / path.segment_key(0, "c" * 32, 0)).write_bytes(b"left over")
    for file in Path(job.url).rglob("*"):
        os.utime(file, (BEGAN, BEGAN))
    second = JobLog.claim(storage, "nightly", RandomIds().new_id())
    use = StageUse(RandomIds().new_id(), 2, path.name, path.fingerprint, path.incarnation)
    second.append(use)
    page = job_page(read_history(storage, "nightly"), "here")
    assert "committed; used again by driver 2, " in page
    assert "before the failure" not in page
    assert page.count('data-mark="compact"') == 1
    assert page.count('data-mark="replace"') == 1
    assert "stage compacted" in page
    assert "durable-shuffle gc" in page


def test_storage_calls(tmp_path: Path, run: Callable[..., Any]) -> None:
    """All operations are timed on the folder that is given, and nothing is left of them."""
    figures, page, root = tmp_path / "f.json", tmp_path / "p.html", tmp_path / "root"
    root.mkdir()
    arguments = ("--scale", "0.02", "--rounds", "1", "--json", figures, "--html", page)
    result = run("bench", "storage", root, *arguments)
    assert result.exit_code == 0, result.output
    lines = {x["operation"]: x for x in json.loads(figures.read_text())["lines"]}
    assert set(lines) >= {"create 1 KiB", "create refused", "put large", "list", "delete"}
    assert all(x["median"] > 0 for x in lines.values())
    assert not [p for p in root.rglob("*") if p.is_file()]
    assert "What storage costs" in page.read_text()
