"""What a report looks like as text."""

import re
from dataclasses import fields, replace
from html import unescape

from durable_shuffle.jobs.stages.report import ConsumerReport, Report, StageReport
from durable_shuffle.jobs.stages.stored import StageInfo, StageList
from durable_shuffle.shuffle.base.words import StageAction, StageStatus

LONG = "a_stage_whose_name_is_as_long_as_people_make_them_when_they_mean_well_and_have_the_space"


def made(kind: type, **values: object) -> object:
    """A report with 0 wherever nothing is said."""
    return kind(**{**dict.fromkeys((f.name for f in fields(kind)), 0), **values})


def stage() -> StageReport:
    found = made(
        StageReport,
        name="query",
        fingerprint="0123456789abcdef" * 2,
        action=StageAction.RESUMED,
        why="",
        partitioner="hash",
        keys=("customer", "day_of_the_order", "country"),
        columns=("customer", "day_of_the_order", "country", "sum"),
        map_tasks=1000,
        map_tasks_run=10,
        map_tasks_reused=990,
        rows=6_001_215_000,
        data_bytes=398 << 20,
        seconds=12.345,
    )
    assert isinstance(found, StageReport)
    return found


def test_a_report_fits_into_100_columns() -> None:
    """Long names are cut, never numbers; what did not happen takes no room."""
    one = stage()
    consumer = made(ConsumerReport, consumer=LONG, resume="approximate", records=10**12)
    assert isinstance(consumer, ConsumerReport)
    native = "broadcast: " + "every task reads it whole " * 8
    text = str(Report("job", 3, (one, replace(one, name=LONG)), (consumer,), (native,)))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "job job, driver no. 3"
    assert lines[1].split() == [
        *("stage", "action", "partitioner", "map", "tasks", "run", "reused", "again", "rows"),
        *("size", "s"),
    ]
    cells = lines[2].split()
    assert cells[0] == "query-012345"
    assert cells[1:] == [
        *("resumed", "hash", "by", "custo…", "1000", "10", "990", "0", "6,001,215,000"),
        *("398.0", "MiB", "12.3"),
    ]
    assert lines[3].startswith("a_st…-012345 ")
    assert "1,000,000,000,000" in text
    assert "again by Spark" not in text


def test_what_went_wrong_has_a_line() -> None:
    """Retries and Spark's own exchanges are told apart, and only where there were some."""
    one = replace(stage(), retries=2, storage_retries=5, storage_wait_seconds=0.5)
    text = str(Report("job", 1, (one, stage())))
    more = (
        "query-012345: 2 tasks started again by Spark, "
        "5 storage requests sent again (waited 0.50 s)"
    )
    assert text.splitlines()[-1] == more
    assert "native" not in text


def test_what_no_later_run_finds_has_a_line() -> None:
    """Else the report of a job that computes all of it each night says nothing but "computed"."""
    why = "a Python function (f reads files (open)) cannot be recognised: give version="
    lost = replace(stage(), action=StageAction.COMPUTED, why=why)
    first = replace(stage(), action=StageAction.COMPUTED, why="no stage of this name is stored")
    text = " ".join(str(Report("job", 1, (lost, first))).split())
    assert f"query-012345: {why}" in text
    assert "no stage" not in text


def test_a_report_of_nothing() -> None:
    """A session that did nothing says so without failing."""
    assert str(Report("job", 1, ())).startswith("job job, driver no. 1")


def test_a_notebook_gets_the_same_as_escaped_html() -> None:
    """Every value is a cell, and names of users cannot become markup."""
    hostile = "<script>alert('x')</script>&"
    consumer = made(ConsumerReport, consumer=hostile, resume="exact", records=7)
    assert isinstance(consumer, ConsumerReport)
    named = replace(stage(), name=hostile, retries=2)
    page = Report("job", 3, (stage(), named), (consumer,), (hostile,), (hostile,))._repr_html_()
    assert "<script" not in page
    cells = re.findall(r"<td>(.*?)</td>", page)
    assert unescape(cells[0]) == "query-012345"
    assert [unescape(cell) for cell in cells].count(hostile) == 1  # the consumer
    assert "6,001,215,000" in cells
    assert unescape(re.sub("<.*?>", "", page)).count(hostile) >= 4
    assert "2 tasks started again by Spark" in page


def test_stages_are_a_list_and_a_table() -> None:
    """Code that takes a list goes on; a notebook shows what is not known yet as such."""
    info = StageInfo("<b>", "ab" * 16, "cd" * 16, StageStatus.PARTIAL, 4, 2, None, None, 0.0)
    stages = StageList([info])
    assert stages == [info]
    cells = re.findall(r"<td>(.*?)</td>", stages._repr_html_())
    assert cells == ["&lt;b&gt;-ababab", "partial", "4", "2", "-", "-", "1970-01-01 00:00:00Z"]


def test_counters_for_monitoring_are_plain_numbers() -> None:
    """Stages by action, and every count summed."""
    found = Report("job", 3, (stage(), replace(stage(), action=StageAction.REUSED))).total()
    assert all(isinstance(value, int | float) for value in found.values())
    assert {k: v for k, v in found.items() if k.startswith("stages")} == {
        "stages": 2,
        "stages_reused": 1,
        "stages_resumed": 1,
        "stages_computed": 0,
        "stages_repaired": 0,
    }
    assert (found["map_tasks_reused"], found["data_bytes"]) == (1980, 2 * (398 << 20))
