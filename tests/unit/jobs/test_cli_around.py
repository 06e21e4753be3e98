"""Around the commands: misuse, names, errors, credentials, options, help, missing extras."""

import json
import re
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from stored_job import stored_stage
from typer.testing import CliRunner

from durable_shuffle.jobs.cli import app as all_commands
from durable_shuffle.jobs.cli import main
from durable_shuffle.jobs.cli.app import app, imported
from durable_shuffle.shuffle.storage.local import LocalStorage

COMMANDS = ["ls", "inspect", "verify", "cat", "release", "storage-check", "demo", "bench"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ls", "carrier-pigeon://coop"], "exclusive create"),
        (["ls", ""], "storage URL"),
        (["ls", "URL/nowhere"], "no such folder: "),
        (["ls", "file:URL/nowhere"], "no such folder: "),
        (["ls", "URL/nightly/log/0000000000"], "no such folder: "),
        (["ls", "URL/nowhere", "nightly"], "there are no jobs"),
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
    job: Any, run: Callable[..., Any], arguments: Sequence[str], message: str
) -> None:
    """Misuse exits with 2 and says what would be right."""
    result = run(*(a.replace("URL", job.url) for a in arguments))
    assert result.exit_code == 2
    assert message in result.stderr.replace("\n", " ")


@pytest.mark.parametrize("text", ["lines-a", "lines-aaaa", "folder"])
def test_a_stage_may_be_named_shorter(job: Any, run: Callable[..., Any], text: str) -> None:
    """The start of a folder's name, or all of it, names a stage."""
    if text == "folder":
        text = Path(job.lines.path.prefix).name
    document = json.loads(run("inspect", job.url, "nightly", text, "--json").stdout)
    assert document["stage"]["description"]["incarnation"] == job.lines.path.incarnation


def test_an_exact_name_goes_before_a_longer_one(job: Any, run: Callable[..., Any]) -> None:
    """A stage called like the start of another's folder is reached by its name."""
    other = stored_stage(
        job.log, LocalStorage(job.url), job="nightly", name="lines-a", fingerprint="f" * 32
    )
    document = json.loads(run("inspect", job.url, "nightly", "lines-a", "--json").stdout)
    assert document["stage"]["description"]["incarnation"] == other.path.incarnation


def test_an_ambiguous_stage_lists_short_names(job: Any, run: Callable[..., Any]) -> None:
    """One per line, as `ls` shows them; each is enough to name its stage, alike ones are longer."""
    result = run("inspect", job.url, "nightly", "lines")
    first, *names = result.stderr.splitlines()
    assert (result.exit_code, first[-9:]) == (2, " 2 match:")
    assert names == ["lines-" + 12 * "a", "lines-" + 12 * "b"]
    listed = [line.split()[0] for line in run("ls", job.url, "nightly").stdout.splitlines()]
    assert set(names) <= set(listed)
    message = json.loads(run("cat", job.url, "nightly", "lines", "--json").stdout)["error"][
        "message"
    ]
    assert message.endswith(" ".join(names))
    again = stored_stage(
        job.log, LocalStorage(job.url), job="nightly", name="lines", fingerprint="a" * 32
    )
    names = run("inspect", job.url, "nightly", "lines").stderr.splitlines()[1:]
    assert len(names) == 3
    found = [
        json.loads(run("inspect", job.url, "nightly", name, "--json").stdout)["stage"]["folder"]
        for name in names
    ]
    assert found == [stage.path.folder for stage in (job.lines, job.unsealed, again)]


def test_json_errors_are_documents(job: Any, run: Callable[..., Any]) -> None:
    """With --json a failure is one document on standard output, with the stable kind."""
    result = run("cat", job.url, "nightly", "lines-b", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["error"]["kind"] == "not_ready"
    result = run("ls", job.url, "nobody", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["kind"] == "invalid_input"


def test_storage_check(tmp_path: Path, run: Callable[..., Any]) -> None:
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """An exception that nobody foresaw is one line and a hint, its secrets blanked."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"unforeseen {SECRET}")

    monkeypatch.setattr("durable_shuffle.jobs.cli.call.open_storage", fail)
    result = run("ls", tmp_path, "--storage-option", f"secret={SECRET}")
    assert result.exit_code == 1
    assert "error: internal: RuntimeError: unforeseen ***" in result.stderr
    assert "--debug" in result.stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_too_little_memory_is_no_defect(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., Any],
    options: Sequence[str],
) -> None:
    """One sentence says what to do."""

    def fail(*_: object, **__: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 2147483648 failed")

    monkeypatch.setattr("durable_shuffle.jobs.cli.call.open_storage", fail)
    result = run("ls", tmp_path, *options)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: memory: this process may not take as much memory")
    assert "run it where there is more" in line
    if options:
        assert json.loads(result.stdout)["error"]["kind"] == "memory"


def test_storage_options_reach_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """Options of the environment and of the line are merged, the line wins, JSON is JSON."""
    seen: list[object] = []

    def record(url: str, options: object, *, call_seconds: float) -> LocalStorage:
        seen.append(options)
        return LocalStorage(url)

    monkeypatch.setattr("durable_shuffle.jobs.cli.call.open_storage", record)
    monkeypatch.setenv("OPTIONS", '{"key": "a", "anon": true}')
    given = ["anon=false", "token=x=y", 'kw={"n": 1}', 'digits="007"']
    pairs = [part for one in given for part in ("--storage-option", one)]
    assert run("ls", tmp_path, "--storage-options-env", "OPTIONS", *pairs).exit_code == 0
    assert seen == [{"key": "a", "anon": False, "token": "x=y", "kw": {"n": 1}, "digits": "007"}]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str, run: Callable[..., Any]) -> None:
    """Every command explains itself with examples and knows --json."""
    result = run(command, "--help")
    assert result.exit_code == 0
    assert f"durable-shuffle {command}" in result.stdout
    assert "--json " in result.stdout


def test_ready_made_runs(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., Any],
) -> None:
    """They get their options, their exit code is handed on, and --json gives their figures."""
    seen = []

    @dataclass
    class Options:
        full: bool
        scale: float | None
        json_file: Path | None
        data: Path | None
        work: Path | None

    def fake(options: Options, console: object) -> int:
        seen.append((options.full, options.scale, options.data))
        if options.json_file:
            options.json_file.write_text('{"passed": false}')
        console.print("some text")  # type: ignore[attr-defined]
        return 1

    fakes = {
        "bench.recovery_demo.demo": {"DemoOptions": Options, "run_demo": fake},
    }
    for name, members in fakes.items():
        module = types.ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, f"durable_shuffle.{name}", module)
    result = run("demo", "--scale", "0.5", "--data", tmp_path)
    assert (result.exit_code, result.stdout) == (1, "some text\n")
    result = run("demo", "--json", "-", "--full")
    assert json.loads(result.stdout) == {"passed": False}
    assert seen == [(False, 0.5, tmp_path), (True, None, None)]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]) -> None:
    """Without Spark the runs say what to install."""
    monkeypatch.setitem(sys.modules, "durable_shuffle.bench.recovery_demo.demo", None)
    monkeypatch.setitem(sys.modules, "durable_shuffle.bench.matrix.recovery", None)
    for command, extra in ((["demo"], "demo"), (["bench", "recovery"], "bench")):
        result = run(*command)
        assert result.exit_code == 2
        assert f"pip install 'durable-shuffle[{extra}]'" in result.stderr


def test_commands_are_imported_when_they_are_called() -> None:
    """The list of commands names them as their own help does, and imports nothing of them."""
    code = (
        "import sys; from typer.testing import CliRunner;"
        "from durable_shuffle.jobs.cli.app import app;"
        "print(CliRunner().invoke(app, ['--help']).stdout);"
        "print([name for name in ('numpy', 'pyarrow', 'durable_shuffle.bench')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    for name, found in all_commands.COMMANDS.items():
        assert re.search(rf"^  {name} +{found.summary[:40]}", done.stdout, re.MULTILINE)
        assert imported(name).help.startswith(found.summary)


def test_runs_that_were_left_out_are_named(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., Any]
) -> None:
    """Where a distribution has no `durable_shuffle.bench`, its commands say what to install."""
    monkeypatch.setitem(sys.modules, "durable_shuffle.bench", None)
    for name in ("demo", "bench"):
        for module in [m for m in sys.modules if m.startswith("durable_shuffle.bench.")]:
            monkeypatch.delitem(sys.modules, module)
        result = run(name, "--help")
        assert result.exit_code == 2
        assert f"pip install 'durable-shuffle[{name}]'" in result.stderr


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
        timeout=120,
    )


def test_no_spark_in_a_real_process(job: Any) -> None:
    """The command runs without pyspark and writes nothing to standard error when all is well."""
    done = real_process(f"verify {job.url}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "all intact" in done.stdout


def test_a_closed_pipe_is_quiet(job: Any) -> None:
    """`cat | head` ends without a traceback."""
    done = real_process(f"cat {job.url} nightly orders --format jsonl | head -n 1")
    assert json.loads(done.stdout)["id"] == 0
    assert done.stderr == ""
