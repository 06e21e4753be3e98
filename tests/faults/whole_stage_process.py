"""Runs whole stages in processes that kill themselves, for real, at one storage call.

Each line on standard input is a job; each job runs in a process forked from this one, which has
imported everything and holds no thread. The answer is how that process ended, as `os.waitpid` says.
"""

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from whole_stage import run_whole_stage

from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                rule = Rule("*", when=job["when"], nth=job["nth"], fault="kill")
                run_whole_stage(FaultyStorage(LocalStorage(job["root"]), [rule]), job["salt"])
                status = 0
            finally:
                os._exit(status)
        sys.stdout.write(f"{os.waitpid(child, 0)[1]}\n")
        sys.stdout.flush()


main()
