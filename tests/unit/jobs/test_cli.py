"""The commands on a job stored without Spark: what they show and what they change."""

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from durable_shuffle.jobs.cli.cat import csv_line, json_value
from durable_shuffle.jobs.cli.changing import parse_age
from durable_shuffle.serialization.errors import FencedError, InvalidInputError, UnavailableError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.storage.local import LocalStorage


def ids_of(partition: int) -> list[int]:
    """What partition k holds by the builder's rule: row number modulo 4, producers in order."""
    return [
        producer * 1_000_000 + row
        for producer, rows in ((0, 3000), (2, 1500))
        for row in range(rows)
        if row % 4 == partition
    ]


def test_ls_lists_jobs_and_stages(job: Any, run: Callable[..., Any]) -> None:
    """`ls` gives one line per job, `ls JOB` one per stage, in the order of their making."""
    (line,) = run("ls", job.url).stdout.splitlines()[1:]
    assert line.split()[:5] == ["nightly", "1", "3", "0", "9000"]
    lines = run("ls", job.url, "nightly").stdout.splitlines()[1:]
    assert [text.split()[:5] for text in lines] == [
        ["orders-000000000000", "stored", "3", "5", "by"],
        ["lines-aaaaaaaaaaaa", "stored", "3", "5", "by"],
        ["lines-bbbbbbbbbbbb", "partial", "3", "5", "by"],
    ]
    document = json.loads(run("ls", job.url, "--json").stdout)
    assert [stage["rows"] for stage in document["jobs"][0]["stages"]] == [4500, 4500, None]


def test_ls_of_nothing(tmp_path: Path, run: Callable[..., Any]) -> None:
    """An empty root has no jobs; that is an answer, not an error."""
    result = run("ls", tmp_path)
    assert result.exit_code == 0
    assert "no jobs" in result.stdout
    assert json.loads(run("ls", tmp_path, "--json").stdout)["jobs"] == []


def test_inspect_a_stage(job: Any, run: Callable[..., Any]) -> None:
    """`inspect` shows producers, sizes and how rows lie over partitions."""
    stage = json.loads(run("inspect", job.url, "nightly", "orders", "--json").stdout)["stage"]
    assert stage["partitions"]["rows"] == [1125, 1125, 1125, 1125, 0]
    assert stage["partitions"]["empty"] == 1
    assert [p["rows"] for p in stage["producers"]] == [3000, 0, 1500]
    assert stage["description"]["keys"] == ["id"]
    on_disk = [p for p in Path(job.url).rglob("*.seg") if "/orders-" in p.as_posix()]
    assert stage["stored_segments"] == len(on_disk)
    assert stage["seal"]["data_bytes"] == sum(p.stat().st_size for p in on_disk)
    assert stage["reruns"] == 0
    text = run("inspect", job.url, "nightly", "lines-b").stdout
    assert "2 of 3 stored" in text
    assert "partial" in text


def test_inspect_counts_an_uncommitted_segment(job: Any, run: Callable[..., Any]) -> None:
    """A segment of an attempt without COMMIT is shown, not taken for data."""
    storage = LocalStorage(job.url)
    storage.put(job.orders.path.segment_key(1, "c" * 32, 0), [b"left behind"])
    stage = json.loads(run("inspect", job.url, "nightly", "orders", "--json").stdout)["stage"]
    assert (stage["uncommitted_segments"], stage["uncommitted_bytes"]) == (1, 11)
    assert stage["producers"][1]["attempts_seen"] == 2
    assert stage["reruns"] == 1


def test_verify_an_intact_job(job: Any, run: Callable[..., Any]) -> None:
    """An intact job exits with 0 and says which stage is not sealed."""
    result = run("verify", job.url)
    assert result.exit_code == 0
    assert "partial: 2 of 3 map tasks are stored" in result.stdout
    document = json.loads(run("verify", job.url, "nightly", "orders", "--json").stdout)
    assert document["ok"] is True
    assert [s["rows"] for s in document["jobs"][0]["stages"]] == [4500]


def test_verify_names_a_damaged_object(job: Any, run: Callable[..., Any]) -> None:
    """A damaged segment exits with 1, names object and bytes, on both kinds of output."""
    path = next(p for p in Path(job.url).rglob("*.seg") if "/orders-" in p.as_posix())
    data = bytearray(path.read_bytes())
    data[100] ^= 4
    path.write_bytes(data)
    key = path.relative_to(job.url).as_posix()
    result = run("verify", job.url, "nightly", "orders")
    assert result.exit_code == 1
    assert f"corrupt_data: {key} bytes=[0, " in result.stdout
    result = run("verify", job.url, "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert {finding["key"] for finding in document["jobs"][0]["findings"]} == {key}
    assert run("verify", job.url, "nightly", "lines-a").exit_code == 0
    result = run("cat", job.url, "nightly", "orders", "--format", "jsonl")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: corrupt_data: ")
    assert "durable-shuffle verify" in result.stderr


def test_a_damaged_job_log_is_told_and_read_around(job: Any, run: Callable[..., Any]) -> None:
    """With one slot of the job log damaged, stages are still found and every command warns."""
    slot = Path(job.url, "nightly", "log", "0000000002")
    slot.write_bytes(slot.read_bytes()[:-1])
    result = run("ls", job.url, "nightly")
    assert "lines-aaaaaaaaaaaa" in result.stdout
    assert "nightly/log/0000000002" in result.stderr
    result = run("cat", job.url, "nightly", "lines-a", "--limit", 1)
    assert (result.exit_code, "warning" in result.stderr) == (0, True)
    result = run("release", job.url, "nightly", "--yes")
    assert (result.exit_code, len(job.files())) == (1, len(job.files()))
    assert result.stderr.count("\n") <= 2


@pytest.mark.parametrize("partition", [0, 3, 4])
def test_cat_one_partition(job: Any, run: Callable[..., Any], partition: int) -> None:
    """One partition comes in stored order, each producer's rows in order; an empty one is empty."""
    arguments = ["cat", job.url, "nightly", "orders", "--partition", partition, "--format"]
    lines = run(*arguments, "jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids_of(partition)
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "csv").stdout)))
    assert [int(row["id"]) for row in rows] == ids_of(partition)


def test_cat_all_partitions_and_limits(job: Any, run: Callable[..., Any]) -> None:
    """Without a partition all rows come once; a limit cuts across partitions; a table shows 20."""
    arguments = ["cat", job.url, "nightly", "orders"]
    everything = [i for k in range(5) for i in ids_of(k)]
    for limit in (None, 0, 1, 1125, 1126, 4500, 9999):
        cut = [] if limit is None else ["--limit", limit]
        lines = run(*arguments, "--format", "jsonl", *cut).stdout.splitlines()
        assert [json.loads(line)["id"] for line in lines] == everything[:limit]
    result = run(*arguments)
    assert len(result.stdout.splitlines()) == 21
    assert "20 rows of 4500" in result.stderr
    document = json.loads(run(*arguments, "--limit", 2, "--json").stdout)
    assert document["rows"] == [
        {"id": 0, "text": None, "value": 0.0},
        {"id": 4, "text": "row 4 of producer 0", "value": 0.5},
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (b"\x00\xff", "AP8="),
        (Decimal("1.20"), "1.20"),
        (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 1, tzinfo=UTC), "2024-02-29T01:00:00+00:00"),
        ({"a": [b"\x01", None]}, {"a": ["AQ==", None]}),
        ([("key", 1.5)], [["key", 1.5]]),
    ],
)
def test_values_that_json_does_not_know(value: object, expected: object) -> None:
    """Every kind of stored value has one form in JSON, and JSON takes it."""
    assert json_value(value) == expected
    json.dumps(json_value(value), allow_nan=False)


def test_csv_tells_null_from_empty_text() -> None:
    """Null is nothing, the empty text two quotes; quotes, commas and line ends survive."""
    assert csv_line([None, "", 1, True, 'a"b', "x,y", "l\nm", [1, None]]) == (
        ',"",1,true,"a""b","x,y","l\nm","[1, null]"\n'
    )


def test_release_dry_run_changes_nothing(job: Any, run: Callable[..., Any]) -> None:
    """A dry run shows what would go, claims nothing and deletes nothing."""
    before = job.files()
    result = run("release", job.url, "nightly", "--older-than", "7d", "--dry-run", "--json")
    assert [s["name"] for s in json.loads(result.stdout)["stages"]] == ["orders"]
    assert job.files() == before
    job.log.check_owner()
    assert run("release", job.url, "nightly", "--older-than", "9d", "--yes").exit_code == 0
    for words, told in (([], "3 are"), (["orders"], "1 is")):
        none = run("release", job.url, "nightly", *words, "--older-than", "9d", "--dry-run")
        assert none.stdout == f"no stage is older than 9d ({told} younger)\n"
    job.log.check_owner()
    assert job.files() == before


def test_release_needs_yes_where_nobody_can_answer(job: Any, run: Callable[..., Any]) -> None:
    """Without a terminal and without --yes nothing is deleted, and the fence is announced."""
    before = job.files()
    result = run("release", job.url, "nightly")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert "fenced" in result.stderr
    assert job.files() == before
    job.log.check_owner()


def test_release_one_stage_fences_the_driver(job: Any, run: Callable[..., Any]) -> None:
    """Release takes the job over, deletes that stage alone, and the older driver learns it."""
    before = job.files()
    result = run("release", job.url, "nightly", "orders", "--yes", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    gone = {key for key in before if "/orders-" in key}
    assert document["generation"] == 2
    assert document["freed"][0]["objects"] == len(gone) + 1
    assert job.files() == before - gone
    with pytest.raises(FencedError):
        job.log.check_owner()
    assert run("cat", job.url, "nightly", "orders").exit_code == 1
    assert "released" in run("inspect", job.url, "nightly", "orders").stdout
    assert run("verify", job.url).exit_code == 0


def test_release_again_has_nothing_to_do(job: Any, run: Callable[..., Any]) -> None:
    """A released stage, however it is named, was released already; the job is not claimed again."""
    assert run("release", job.url, "nightly", "orders", "--yes").exit_code == 0
    owner = JobLog.claim(LocalStorage(job.url), "nightly", RandomIds().new_id())
    before = job.files()
    names = (job.orders.path.folder, "orders-0000", "orders")
    for name in names:
        for more in (["--yes"], ["--dry-run"], []):
            again = run("release", job.url, "nightly", name, *more)
            assert (again.exit_code, again.stderr) == (0, "")
            assert again.stdout == f"stage {name!r} was released already: nothing to do\n"
    document = json.loads(run("release", job.url, "nightly", "orders", "--yes", "--json").stdout)
    assert (document["stages"], document["released_before"]) == ([], [names[0]])
    owner.check_owner()
    assert job.files() == before
    assert run("release", job.url, "nightly", "order", "--yes").exit_code == 2
    assert run("compact", job.url, "nightly", "orders-0000").exit_code == 2


def test_release_again_finishes_what_died_midway(
    job: Any, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """If the deletion died, releasing the stage again is what ends it."""

    class Died(LocalStorage):
        def delete(self, keys: object) -> None:
            raise UnavailableError("died here")

    opened = "durable_shuffle.jobs.cli.call.open_storage"
    words = ("release", job.url, "nightly", "orders-0", "--yes")
    with monkeypatch.context() as patched:
        patched.setattr(opened, lambda *_, **__: Died(job.url))
        assert run(*words).exit_code == 1
    left = {key for key in job.files() if "/orders-" in key}
    assert left
    assert run(*words).exit_code == 0
    assert not left & job.files()
    assert "nothing to do" in run(*words).stdout


def test_release_everything(job: Any, run: Callable[..., Any]) -> None:
    """Without a stage or an age all stages go, unsealed ones too; a second time nothing is left."""
    assert run("release", job.url, "nightly", "--yes").exit_code == 0
    assert job.files() == set()
    assert "no stages" in run("release", job.url, "nightly", "--yes").stdout


def test_a_stage_that_a_driver_released_first(
    job: Any, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """A stage that goes between the look and the claim is not released a second time."""

    class Slow(JobLog):
        @classmethod
        def claim(cls, *args: object, **how: object) -> JobLog:
            release_stage_of(job.log, LocalStorage(job.url), job.orders.path, RandomIds())
            return JobLog.claim(*args, **how)

    monkeypatch.setattr("durable_shuffle.jobs.cli.changing.JobLog", Slow)
    document = json.loads(run("release", job.url, "nightly", "--yes", "--json").stdout)
    assert [freed["stage"].split("-")[0] for freed in document["freed"]] == ["lines", "lines"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90m", timedelta(minutes=90)), ("7d", timedelta(days=7)), ("2w", timedelta(days=14))],
)
def test_ages(text: str, expected: timedelta) -> None:
    """An age is a number and a unit."""
    assert parse_age(text) == expected


@pytest.mark.parametrize("text", ["7", "d", "7 d", "-7d", "7y", "1.5d", "9" * 14 + "w", "9" * 99])
def test_ages_that_are_none(text: str) -> None:
    """Anything else is misuse."""
    with pytest.raises(InvalidInputError, match="older-than"):
        parse_age(text)
