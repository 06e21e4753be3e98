"""What the processes of the command benchmark run: a real line, no data."""

import time
from dataclasses import dataclass
from pathlib import Path

from durable_shuffle.recovery.job.phases import TaskPhase
from durable_shuffle.recovery.pipeline.task.link import TaskLink


@dataclass(frozen=True)
class LightWorker:
    """Starts as a task does, then writes down when each change of the settings was taken in."""

    folder: str

    def __call__(self, link: TaskLink) -> None:
        link.say(TaskPhase.STARTING)
        link.wait_start()
        link.pass_barrier()
        told = 0
        with (Path(self.folder) / link.task).open("a") as heard:
            while link.stop is None:
                rows = int(link.settings.get("commit_rows", 0))
                if rows != told:
                    told = rows
                    heard.write(f"{rows} {time.monotonic()}\n")
                    heard.flush()
                time.sleep(0.005)  # between two looks
        link.say(TaskPhase.CANCELED)
