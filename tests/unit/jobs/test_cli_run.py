"""`durable-shuffle run` with real processes: what is started again, what is not, what is said."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
from small_stage import ManualClock

from durable_shuffle.jobs import options
from durable_shuffle.jobs.cli.program import PREFIX, program_at, setting_in, through_wrapper
from durable_shuffle.jobs.cli.run import Place, Runner
from durable_shuffle.jobs.outcome import kind_of, told
from durable_shuffle.recovery.program import Stop
from durable_shuffle.serialization.errors import InvalidInputError, UnavailableError
from durable_shuffle.shuffle.base.retry import Backoff
from durable_shuffle.shuffle.storage.open import open_storage

PROGRAM = Path(__file__).parents[2] / "support" / "started_again.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
COMMAND = [sys.executable, "-m", "durable_shuffle.jobs.cli", "run"]


class Shell:
    """Where the programs of one test run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "data"
        self.notes: list[str] = []
        self.clock = ManualClock(0.0, [])

    def command(self, words: str) -> list[str]:
        return [sys.executable, str(PROGRAM), str(self.root), str(self.folder), words]

    def run(self, words: str, *, max_retries: int = 2, place: Place | None = None) -> Stop:
        """Run the program in this process's shell, on a clock that does not wait."""
        backoff = Backoff(max_retries, 5.0, 2.0, 60.0)
        runner = Runner(
            self.clock, lambda: 0.0, backoff, open_storage, self.notes.append, ENVIRONMENT
        )
        return runner.run(self.command(words), place or Place(None, None))

    @property
    def attempts(self) -> int:
        return len((self.folder / "attempts").read_text().splitlines())


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """An empty folder."""
    return Shell(tmp_path)


def test_a_killed_program_is_started_again_until_it_ends(shell: Shell) -> None:
    """After a SIGKILL and an outage the third attempt ends, and so does the command, with 0."""
    stop = shell.run("killed,unavailable,0")
    assert (stop.exit_code, shell.attempts) == (0, 3)
    assert shell.clock.pauses == [5.0, 10.0]
    assert "attempt 1 was killed by SIGKILL" in shell.notes[0]
    assert "attempt 2 ended with exit code 1 (UnavailableError)" in shell.notes[1]


def test_attempts_that_store_something_may_go_on(shell: Shell) -> None:
    """Four attempts that each store more outlast a limit of one; then nothing is stored."""
    words = "write,write,write,write,killed"
    stop = shell.run(words, max_retries=1, place=Place(str(shell.root), "nightly"))
    assert (stop.exit_code, stop.why) == (1, "2 attempts in a row stored nothing new")
    assert shell.attempts == 6
    assert "0 stages stored; stage: 1 of 4 map tasks stored; again in" in shell.notes[0]
    assert "stage: 3 of 4 map tasks stored; again in" in shell.notes[2]
    assert shell.clock.pauses == [5.0] * 5


@pytest.mark.parametrize(
    ("word", "code", "why"),
    [
        ("taken", 3, "a newer driver has the job"),
        ("taken-killed", 3, "a newer driver has the job"),
        ("wrapped", 4, "invalid_input"),
        ("module", 4, "ModuleNotFoundError"),
        ("2", 4, "misuse"),
    ],
)
def test_what_is_not_started_again(shell: Shell, word: str, code: int, why: str) -> None:
    """A driver that lost its job, even if it was killed before it noticed; errors that repeat."""
    stop = shell.run(f"{word},0")
    assert (stop.exit_code, shell.attempts) == (code, 1)
    assert why in stop.why


def test_a_job_that_another_driver_takes_during_the_wait_is_left_to_it(shell: Shell) -> None:
    """The look after the wait finds a newer driver, so the program is not started."""
    other = [sys.executable, str(PROGRAM), str(shell.root), str(shell.folder / "other"), "killed"]
    (shell.folder / "other").mkdir()

    class TakenMeanwhile(ManualClock):
        def sleep(self, seconds: float) -> None:
            subprocess.run(other, env=ENVIRONMENT, check=False)

    shell.clock = TakenMeanwhile(0.0, [])
    stop = shell.run("killed,0")
    assert (stop.exit_code, shell.attempts) == (3, 1)


def test_a_command_that_is_not_there(shell: Shell) -> None:
    """It ends at once, and says why."""
    runner = Runner(shell.clock, lambda: 0.0, Backoff(2), open_storage, shell.notes.append)
    stop = runner.run([str(shell.folder / "nothing")], Place(None, None))
    assert (stop.exit_code, stop.why) == (4, "the command was not found")


def start(shell: Shell, words: str, *options: str) -> subprocess.Popen[str]:
    """Start the command itself."""
    return subprocess.Popen(
        [*COMMAND, *options, "--", *shell.command(words)],
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_sigterm_reaches_the_program_and_nothing_is_started_again(shell: Shell) -> None:
    """The program ends in its own way, and the command with 128 and the signal's number."""
    process = start(shell, "waits")
    while not (shell.folder / "waiting").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM
    assert "attempt 1 ended with exit code 7" in errors
    assert "SIGTERM was passed on" in errors
    assert shell.attempts == 1


def test_sigterm_ends_the_wait_between_two_attempts(shell: Shell) -> None:
    """Nobody waits for an hour, and no attempt follows."""
    process = start(shell, "killed", "--first-delay", "3600", "--longest-delay", "3600")
    assert process.stderr is not None
    assert "again in" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert shell.attempts == 1


def test_a_signal_before_the_first_attempt_starts_nothing(shell: Shell) -> None:
    """It comes while the command looks at the storage, as when a pod is to go at once."""

    def opened(url: str) -> NoReturn:
        os.kill(os.getpid(), signal.SIGTERM)
        raise UnavailableError("not now")

    runner = Runner(shell.clock, lambda: 0.0, Backoff(2), opened, shell.notes.append)
    stop = runner.run(shell.command("0"), Place("memory://x", "job"))
    assert stop.exit_code == 128 + signal.SIGTERM
    assert not (shell.folder / "attempts").exists()


def test_sigterm_has_a_handler_before_the_libraries_are_imported() -> None:
    """As process 1 of a pod, the command would not get the signal at all without one."""
    code = (
        "import signal, sys\n"
        "from durable_shuffle.jobs.cli import main\n"
        "class Look:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name in ('typer', 'durable_shuffle.jobs.cli.app'):\n"
        "            print(signal.getsignal(signal.SIGTERM).__name__)\n"
        "            raise SystemExit(0)\n"
        "sys.meta_path.insert(0, Look())\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["_end"]


def test_exit_codes_of_the_command(shell: Shell) -> None:
    """What was decided is what the shell sees; without retries the first failure is the last."""
    for words, code in (("0", 0), ("5", 1), ("wrapped", 4)):
        (shell.folder / "attempts").unlink(missing_ok=True)
        process = start(shell, words, "--max-retries", "0")
        process.communicate(timeout=600)
        assert process.returncode == code, words
    misuse = [*COMMAND, "--transparent", "spark-submit", "job.jar"]
    done = subprocess.run(misuse, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--transparent needs" in done.stderr


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python job.py job2.py", "job.py"),
        ("/usr/bin/python3.11 -u -X dev job.py", "job.py"),
        ("spark-submit --py-files a.py,b.py --verbose --conf a=b jobs/nightly.py x", "nightly"),
        ("spark-submit --master=yarn nightly.py --py-files c.py", "nightly"),
        ("python nightly.sql", "nightly"),
    ],
)
def test_which_file_is_the_program(command: str, program: str) -> None:
    """Options and what they take are passed over; the program's own arguments stay behind it."""
    words = command.split()
    at = program_at(words)
    assert Path(words[at]).stem == program.removesuffix(".py")
    wrapped, job = through_wrapper(words, "url", None, None)
    assert job == program.removesuffix(".py")
    assert wrapped[:at] + wrapped[at + 2 :] == words
    assert Path(wrapped[at]).name == "transparent_program.py"
    assert Path(wrapped[at]).exists()


@pytest.mark.parametrize(
    "command", ["python -m job", "spark-submit a.jar", "job.sh a.py", "python"]
)
def test_what_is_no_program(command: str) -> None:
    """Said by name, before anything starts."""
    with pytest.raises(InvalidInputError, match="--transparent needs"):
        program_at(command.split())


def test_the_job_that_spark_submit_is_given() -> None:
    """In both spellings of --conf; what is not there stays unknown."""
    words = ["spark-submit", "--conf", "spark.durableShuffle.url=s3://b/x=1", "job.py"]
    assert setting_in(words, "url") == "s3://b/x=1"
    assert setting_in(words, "job") is None
    assert setting_in([*words, "--conf=spark.durableShuffle.job=j"], "job") == "j"
    assert PREFIX == options.PREFIX


def test_errors_of_tasks_are_found_in_the_text_of_sparks_error() -> None:
    """Spark passes on texts only; a cause counts, an error that was handled does not."""
    text = "Traceback: durable_shuffle.serialization.errors.CorruptDataError: frame 3"
    assert kind_of(RuntimeError(text)) == "corrupt_data"
    assert kind_of(RuntimeError("durable_shuffle.serialization.errors.ErrorKind")) == ""
    assert kind_of(UnavailableError("x")) == "unavailable"
    assert kind_of(ValueError("x")) == ""
    caused, handled = ValueError("x"), ValueError("y")
    caused.__cause__ = handled.__context__ = InvalidInputError("a bad name")
    assert (kind_of(caused), kind_of(handled)) == ("invalid_input", "")


def test_a_line_that_was_cut_by_a_kill_is_left_out() -> None:
    """What was told before stands."""
    text = '{"url": "file:/x", "job": "a"}\n{"job": "b"}\n{"kind": "fen'
    assert told(text) == {"url": "file:/x", "job": "b"}
