"""A program without Spark for `durable-shuffle run`: `started_again.py ROOT FOLDER WORDS`.

Each attempt claims the job, adds a line to FOLDER/attempts, and does the word of WORDS that has its
number; the last word stands for all later ones.
"""

import os
import signal
import sys
from pathlib import Path

from stored_job import stored_stage

from durable_shuffle.jobs.outcome import tell_end, tell_job
from durable_shuffle.serialization.errors import InvalidInputError, UnavailableError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.storage.local import LocalStorage

JOB = "nightly"


def main(root: str, folder: Path, words: list[str]) -> None:
    """Do what this attempt is to do."""
    tell_end()
    storage, ids = LocalStorage(root), RandomIds()
    log = JobLog.claim(storage, JOB, ids.new_id())
    tell_job(storage.description, JOB, log.state.owner)
    with (folder / "attempts").open("a") as file:
        file.write("attempt\n")
    number = len((folder / "attempts").read_text().splitlines())
    word = words[min(number, len(words)) - 1]
    if word == "write":  # a further producer of a further stage
        rows = [10] * 4
        commit, name = range(number), f"{number:x}"
        stored_stage(
            log, storage, job=JOB, fingerprint=name * 32, rows=rows, commit=commit, seal=False
        )
        word = "killed"
    if word in ("taken", "taken-killed"):
        JobLog.claim(storage, JOB, ids.new_id())
        if word == "taken":
            log.check_owner()
        word = "killed"
    if word == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "waits":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        (folder / "waiting").touch()
        signal.pause()
    if word == "unavailable":
        raise UnavailableError("the storage does not answer")
    if word == "wrapped":
        raise RuntimeError("the job failed") from InvalidInputError("a bad name")
    if word == "module":
        raise ModuleNotFoundError("No module named 'nothing'")
    if word.isdigit():
        sys.exit(int(word))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(","))
