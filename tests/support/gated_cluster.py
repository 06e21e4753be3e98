"""A cluster whose driver takes commands: `programs/standalone_driver.py`, of any master."""

import json
from pathlib import Path
from typing import Any

from pipelines import until

EXPECTED = sorted((n % 7, n) for n in range(40))
NO_IDLE_EXECUTORS = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.initialExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
}


class GatedCluster:
    """A master, and a driver in its own process. Producer 2 waits at a gate, on its first try."""

    def __init__(
        self, folder: Path, programs: Any, master: str, conf: dict[str, str], env: dict[str, str]
    ) -> None:
        self.folder, self.programs, self.env = folder, programs, env
        self._master, self._conf = master, conf
        self.root, self.gate = folder / "data", folder / "gate"
        (self.gate / "runs").mkdir(parents=True)
        self.driver: Any = None

    def start(self, conf: dict[str, str], url: str | None = None) -> None:
        local = {"spark.local.dir": str(self.folder / "local")}
        settings = json.dumps({**self._conf, **local, **conf})
        self.driver = self.programs.start(
            "standalone_driver", self._master, url or self.root, self.gate, settings, env=self.env
        )

    def tell(self, command: str) -> None:
        self.programs.tell(self.driver, command)

    def ask(self, command: str) -> dict[str, Any]:
        """Carry out a command; return what came of it."""
        self.tell(command)
        return dict(self.programs.answer(self.driver))

    def open_gate(self) -> None:
        (self.gate / "open").touch()

    def committed(self) -> int:
        """Return how many producers have committed."""
        return len(list(self.root.glob(f"*/*/producers/p*/{0:010d}")))

    def gated_worker(self) -> int:
        """Wait until all producers but the one at its gate have committed; return its process."""
        until(
            lambda: (
                self.driver.poll() is not None
                or ((self.gate / "worker").exists() and self.committed() == 5)
            ),
            "five producers",
        )
        assert self.driver.poll() is None, "the driver ended early"
        return int((self.gate / "worker").read_text())

    def runs(self) -> dict[int, int]:
        folder = self.gate / "runs"
        return {int(p.name): len(p.read_text().splitlines()) for p in folder.iterdir()}


def only(answer: dict[str, Any]) -> dict[str, Any]:
    """The stage of an answer, whose rows are right."""
    assert [tuple(row) for row in answer["rows"]] == EXPECTED
    (stage,) = answer["stages"]
    return dict(stage)
