"""The command line on a job stored without Spark: what it shows, refuses and changes."""

import csv
import io
import json
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from durable_shuffle.jobs.cli import main
from durable_shuffle.jobs.cli.app import app
from durable_shuffle.jobs.cli.release import parse_age
from durable_shuffle.jobs.cli.rows import csv_line, json_value
from durable_shuffle.serialization.errors import FencedError, InvalidInputError
from durable_shuffle.shuffle.clock import RandomIds, SystemClock
from durable_shuffle.shuffle.job_log import JobLog
from durable_shuffle.shuffle.local_storage import LocalStorage
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.stage import StageHandle
from durable_shuffle.shuffle.testing.stored_job import stored_stage

Run = Callable[..., Result]
COMMANDS = ["ls", "inspect", "verify", "cat", "release", "storage-check", "demo", "bench"]
DAY = 86_400


@dataclass(frozen=True)
class Job:
    """A job with three stages: orders (old), lines sealed, lines unsealed."""

    url: str
    log: JobLog
    orders: StageHandle
    lines: StageHandle
    unsealed: StageHandle

    def files(self) -> set[str]:
        return {p.relative_to(self.url).as_posix() for p in Path(self.url).rglob("*.seg")}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Rows per producer: 3000, 0 and 1500; partition 4 of 5 stays empty."""
    storage = LocalStorage(tmp_path)
    now = SystemClock().wall()
    log = JobLog.claim(storage, "nightly", RandomIds().new_id())
    settings = Settings(writer_memory_bytes=65_536, frame_bytes=4096)

    def stage(name: str, fingerprint: str, age: float, **how: object) -> StageHandle:
        return stored_stage(
            log,
            storage,
            job="nightly",
            name=name,
            fingerprint=fingerprint * 32,
            created_wall_seconds=now - age,
            settings=settings,
            rows=(3000, 0, 1500),
            **how,
        )

    return Job(
        str(tmp_path),
        log,
        stage("orders", "0", 8 * DAY),
        stage("lines", "a", 0),
        stage("lines", "b", 0, seal=False, commit=(1, 2)),
    )


@pytest.fixture
def run() -> Run:
    """Run a command; a traceback on either stream fails the test."""

    def call(*arguments: object) -> Result:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert "Traceback" not in result.output
        return result

    return call


def ids_of(partition: int) -> list[int]:
    """What partition k holds by the builder's rule: row number modulo 4, producers in order."""
    return [
        producer * 1_000_000 + row
        for producer, rows in ((0, 3000), (2, 1500))
        for row in range(rows)
        if row % 4 == partition
    ]


def test_ls_lists_jobs_and_stages(job: Job, run: Run) -> None:
    """`ls` gives one line per job, `ls JOB` one per stage, in the order of their making."""
    (line,) = run("ls", job.url).stdout.splitlines()[1:]
    assert line.split()[:5] == ["nightly", "1", "3", "0", "9000"]
    lines = run("ls", job.url, "nightly").stdout.splitlines()[1:]
    assert [text.split()[:5] for text in lines] == [
        ["orders-000000000000", "sealed", "3", "5", "4500"],
        ["lines-aaaaaaaaaaaa", "sealed", "3", "5", "4500"],
        ["lines-bbbbbbbbbbbb", "unsealed", "3", "5", "-"],
    ]
    document = json.loads(run("ls", job.url, "--json").stdout)
    assert [stage["rows"] for stage in document["jobs"][0]["stages"]] == [4500, 4500, None]


def test_ls_of_nothing(tmp_path: Path, run: Run) -> None:
    """An empty root has no jobs; that is an answer, not an error."""
    result = run("ls", tmp_path)
    assert result.exit_code == 0
    assert "no jobs" in result.stdout
    assert json.loads(run("ls", tmp_path, "--json").stdout)["jobs"] == []


def test_inspect_a_stage(job: Job, run: Run) -> None:
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
    assert "2 of 3 committed" in text
    assert "unsealed" in text


def test_inspect_counts_an_uncommitted_segment(job: Job, run: Run) -> None:
    """A segment of an attempt without COMMIT is shown, not taken for data."""
    storage = LocalStorage(job.url)
    storage.put(job.orders.path.segment_key(1, "c" * 32, 0), [b"left behind"])
    stage = json.loads(run("inspect", job.url, "nightly", "orders", "--json").stdout)["stage"]
    assert (stage["uncommitted_segments"], stage["uncommitted_bytes"]) == (1, 11)
    assert stage["producers"][1]["attempts_seen"] == 2
    assert stage["reruns"] == 1


def test_verify_an_intact_job(job: Job, run: Run) -> None:
    """An intact job exits with 0 and says which stage is not sealed."""
    result = run("verify", job.url)
    assert result.exit_code == 0
    assert "not sealed: 2 of 3 producers" in result.stdout
    document = json.loads(run("verify", job.url, "nightly", "orders", "--json").stdout)
    assert document["ok"] is True
    assert [s["rows"] for s in document["jobs"][0]["stages"]] == [4500]


def test_verify_names_a_damaged_object(job: Job, run: Run) -> None:
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


def test_a_damaged_job_log_is_told_and_read_around(job: Job, run: Run) -> None:
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
def test_cat_one_partition(job: Job, run: Run, partition: int) -> None:
    """One partition comes in stored order, each producer's rows in order; an empty one is empty."""
    arguments = ["cat", job.url, "nightly", "orders", "--partition", partition, "--format"]
    lines = run(*arguments, "jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids_of(partition)
    rows = list(csv.DictReader(io.StringIO(run(*arguments, "csv").stdout)))
    assert [int(row["id"]) for row in rows] == ids_of(partition)


def test_cat_all_partitions_and_limits(job: Job, run: Run) -> None:
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


def test_release_dry_run_changes_nothing(job: Job, run: Run) -> None:
    """A dry run shows what would go, claims nothing and deletes nothing."""
    before = job.files()
    result = run("release", job.url, "nightly", "--older-than", "7d", "--dry-run", "--json")
    assert [s["name"] for s in json.loads(result.stdout)["stages"]] == ["orders"]
    assert job.files() == before
    job.log.check_owner()
    assert run("release", job.url, "nightly", "--older-than", "9d", "--yes").exit_code == 0
    job.log.check_owner()
    assert job.files() == before


def test_release_needs_yes_where_nobody_can_answer(job: Job, run: Run) -> None:
    """Without a terminal and without --yes nothing is deleted, and the fence is announced."""
    before = job.files()
    result = run("release", job.url, "nightly")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert "fenced" in result.stderr
    assert job.files() == before
    job.log.check_owner()


def test_release_one_stage_fences_the_driver(job: Job, run: Run) -> None:
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
    again = run("release", job.url, "nightly", "orders", "--yes")
    assert (again.exit_code, "was released" in again.stderr) == (2, True)
    assert "released" in run("inspect", job.url, "nightly", "orders").stdout
    assert run("verify", job.url).exit_code == 0


def test_release_everything(job: Job, run: Run) -> None:
    """Without a stage or an age all stages go, unsealed ones too; a second time nothing is left."""
    assert run("release", job.url, "nightly", "--yes").exit_code == 0
    assert job.files() == set()
    assert "no stages" in run("release", job.url, "nightly", "--yes").stdout


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "carrier-pigeon://coop"], "exclusive create"),
        (["ls", ""], "storage URL"),
        (["ls", "URL", "nightyl"], "did you mean 'nightly'"),
        (["ls", "URL", "../nightly"], "job must be"),
        (["verify", "URL", "nightly", "order"], "did you mean 'orders'? stages here: lines"),
        (["verify", "URL", "nightly", "lines"], "ambiguous, 2 match: lines-aaaa"),
        (["inspect", "URL", "nightly", "lines-c"], "has no stage 'lines-c'"),
        (["inspect", "URL", "nightly", "orders-"], "has no stage 'orders-'"),
        (["cat", "URL", "nightly", "orders", "--partition", "5"], "partitions=5"),
        (["cat", "URL", "nightly", "orders", "--partition", "-1"], "--partition"),
        (["cat", "URL", "nightly", "orders", "--limit", "many"], "--limit"),
        (["cat", "URL", "nightly", "orders", "--format", "xml"], "jsonl"),
        (["release", "URL", "nightly", "--older-than", "soon"], "such as 7d"),
        (["storage-check", "URL", "--processes", "1"], "two processes"),
        (["ls", "URL", "--storage-option", "key=value"], "takes no options"),
        (["ls", "URL", "--storage-options-env", "NO_SUCH_NAME"], "NO_SUCH_NAME"),
        (["verify", "URL/empty"], "nothing to verify"),
        (["frobnicate"], "frobnicate"),
    ],
)
def test_misuse_is_told_in_words(
    job: Job, run: Run, arguments: Sequence[str], message: str
) -> None:
    """Misuse exits with 2 and says what would be right."""
    result = run(*(a.replace("URL", job.url) for a in arguments))
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("text", ["lines-a", "lines-aaaa", "folder"])
def test_a_stage_may_be_named_shorter(job: Job, run: Run, text: str) -> None:
    """The start of a folder's name, or all of it, names a stage."""
    if text == "folder":
        text = Path(job.lines.path.prefix).name
    document = json.loads(run("inspect", job.url, "nightly", text, "--json").stdout)
    assert document["stage"]["description"]["incarnation"] == job.lines.path.incarnation


def test_an_exact_name_goes_before_a_longer_one(job: Job, run: Run) -> None:
    """A stage called like the start of another's folder is reached by its name."""
    other = stored_stage(
        job.log, LocalStorage(job.url), job="nightly", name="lines-a", fingerprint="f" * 32
    )
    document = json.loads(run("inspect", job.url, "nightly", "lines-a", "--json").stdout)
    assert document["stage"]["description"]["incarnation"] == other.path.incarnation


def test_json_errors_are_documents(job: Job, run: Run) -> None:
    """With --json a failure is one document on standard output, with the stable kind."""
    result = run("cat", job.url, "nightly", "lines-b", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["kind"] == "not_ready"
    result = run("ls", job.url, "nobody", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["kind"] == "invalid_input"


def test_storage_check(tmp_path: Path, run: Run) -> None:
    """The contract is tried on the folder that is given, and nothing stays behind."""
    result = run("storage-check", tmp_path, "--processes", 2, "--rounds", 2, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["passed"] is True
    assert all(law["passed"] for law in document["laws"])
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


SECRET = "hunter2hunter2"


@pytest.mark.parametrize("debug", [[], ["--debug"]])
@pytest.mark.parametrize(
    "arguments",
    [
        ["ls", f"ftp://user:{SECRET}@host/x"],
        ["ls", f"s3://b/x?secret={SECRET}"],
        ["ls", "URL", "--storage-option", f"secret={SECRET}"],
        ["ls", "URL", "--storage-option", SECRET],
        ["ls", "URL", "--storage-options-env", "OPTIONS"],
        ["ls", "URL", "--storage-options-env", "BROKEN"],
    ],
)
def test_no_credential_in_any_output(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: Sequence[str],
    debug: Sequence[str],
) -> None:
    """Whatever goes wrong, with --debug too, no secret is written."""
    monkeypatch.setenv("OPTIONS", json.dumps({"client_kwargs": {"password": SECRET}}))
    monkeypatch.setenv("BROKEN", f'{{"secret": "{SECRET}"')
    given = [a.replace("URL", str(tmp_path)) for a in arguments]
    result = CliRunner().invoke(app, [*given, *debug])
    assert result.exit_code == 2
    assert SECRET not in result.output
    assert ("Traceback" in result.stderr) == bool(debug)


def test_a_defect_is_one_line_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """An exception that nobody foresaw is one line and a hint, its secrets blanked."""

    def fail(*_: object) -> None:
        raise RuntimeError(f"unforeseen {SECRET}")

    monkeypatch.setattr("durable_shuffle.jobs.cli.call.open_storage", fail)
    result = run("ls", tmp_path, "--storage-option", f"secret={SECRET}")
    assert result.exit_code == 1
    assert "error: internal: RuntimeError: unforeseen ***" in result.stderr
    assert "--debug" in result.stderr


def test_storage_options_reach_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Options of the environment and of the line are merged, the line wins, JSON is JSON."""
    seen: list[object] = []

    def record(url: str, options: object) -> LocalStorage:
        seen.append(options)
        return LocalStorage(url)

    monkeypatch.setattr("durable_shuffle.jobs.cli.call.open_storage", record)
    monkeypatch.setenv("OPTIONS", '{"key": "a", "anon": true}')
    given = ["anon=false", "token=x=y", 'kw={"n": 1}', 'digits="007"']
    pairs = [part for one in given for part in ("--storage-option", one)]
    assert run("ls", tmp_path, "--storage-options-env", "OPTIONS", *pairs).exit_code == 0
    assert seen == [{"key": "a", "anon": False, "token": "x=y", "kw": {"n": 1}, "digits": "007"}]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str, run: Run) -> None:
    """Every command explains itself with examples and knows --json."""
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"durable-shuffle {command}" in result.stdout
    assert "--json " in result.stdout


@pytest.mark.parametrize(("command", "function"), [("demo", "run_demo"), ("bench", "run_bench")])
def test_ready_made_runs(
    command: str, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """They get their options, their exit code is handed on, and --json gives their figures."""
    seen = []

    @dataclass
    class Options:
        scale: float
        json_file: Path | None
        data: Path | None
        work: Path | None

    def fake(options: Options, console: object) -> int:
        seen.append((options.scale, options.data))
        if options.json_file:
            options.json_file.write_text('{"passed": false}')
        console.print("some text")  # type: ignore[attr-defined]
        return 1

    fakes = {
        "tpch_recovery": {"DemoOptions": Options, "run_demo": fake},
        "bench_recovery": {"run_bench": fake},
    }
    for name, members in fakes.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, f"durable_shuffle.jobs.{name}", module)
    result = run(command, "--scale", "0.5", "--data", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "some text\n")
    result = run(command, "--json")
    assert json.loads(result.stdout) == {"passed": False}
    assert seen == [(0.5, tmp_path), (0.2, None)]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """Without Spark the runs say what to install."""
    monkeypatch.setitem(sys.modules, "durable_shuffle.jobs.bench_recovery", None)
    result = run("demo")
    assert result.exit_code == 2
    assert "pip install 'durable-shuffle[demo]'" in result.stderr


def test_without_typer_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the extra `cli` the command says in one line what to install."""
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error == "the command line needs typer: pip install 'durable-shuffle[cli]'\n"


def real_process(arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a shell where pyspark cannot be imported and a warning is an error."""
    blocked = "import sys; sys.modules['pyspark'] = None"
    code = f"{blocked}; from durable_shuffle.jobs.cli import main; main()"
    command = f'"{sys.executable}" -W error -c "{code}" {arguments}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_no_spark_in_a_real_process(job: Job) -> None:
    """The command runs without pyspark and writes nothing to standard error when all is well."""
    done = real_process(f"verify {job.url}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all intact" in done.stdout


def test_a_closed_pipe_is_quiet(job: Job) -> None:
    """`cat | head` ends without a traceback."""
    done = real_process(f"cat {job.url} nightly orders --format jsonl | head -n 1")
    assert json.loads(done.stdout)["id"] == 0
    assert done.stderr == ""
