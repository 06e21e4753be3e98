"""Why no stored stage can be used: the aspects in which the newest stages of that name differ."""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from durable_shuffle.jobs.identity.plan.catalyst_walk import VOUCH
from durable_shuffle.jobs.stages.identity import StageIdentity, moved_sentence, moved_values
from durable_shuffle.recovery.resume import explain_miss
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import Describe
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.storage.contract import Storage

_COMPARED = 50
"""How many of the newest stages with the same name are compared to explain a miss."""


class Misses:
    """Explains misses of one claimed job. Reads each stored description once."""

    def __init__(self, storage: Storage, log: JobLog, settings: Settings) -> None:
        self._storage, self._log, self._settings = storage, log, settings
        self._known: dict[StagePath, Describe] = {}
        self._warned: set[tuple[str, tuple[str, ...]]] = set()

    def why(self, name: str, identity: StageIdentity) -> str:
        """Say why no stored stage can be used, for people."""
        if identity.unresolved:
            reasons = "; ".join(identity.unresolved)
            return reasons if "version=" in reasons else f"{reasons}: {VOUCH}"
        others = [p for p in self._log.state.order if p.name == name]
        if not others:
            return f"the job has no stage named {name!r}"
        compared = others[-_COMPARED:]
        with ThreadPoolExecutor(self._settings.control_threads) as pool:
            list(pool.map(self._read, [one for one in compared if one not in self._known]))
        stored = [self._known[one] for one in compared]
        why = explain_miss(identity.components, [describe.components for describe in stored])
        moved = self._moved(name, identity, stored)
        return f"{why}; {moved}" if moved else why

    def _moved(self, name: str, identity: StageIdentity, stored: Sequence[Describe]) -> str:
        """Return the warning if only captured values differ from an earlier run's stage, else "".

        The warning is printed to standard error once per stage name and set of values.
        """
        for describe in reversed(stored):
            if describe.generation < self._log.generation:
                values = moved_values(identity.components, describe.components)
                if values:
                    sentence = moved_sentence(values)
                    if (name, values) not in self._warned:
                        self._warned.add((name, values))
                        print(f"durable_shuffle: stage {name!r}: {sentence}", file=sys.stderr)  # noqa: T201
                    return sentence
        return ""

    def made(self, stage: StageHandle) -> None:
        """Know a stage that this driver has just described."""
        self._known[stage.path] = stage.describe

    def _read(self, path: StagePath) -> None:
        self._known[path] = open_stage(self._storage, path).describe
