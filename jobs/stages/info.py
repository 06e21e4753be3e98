"""The entries of `stages()`."""

from dataclasses import dataclass

from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage, read_state
from durable_shuffle.shuffle.storage.contract import Storage


@dataclass(frozen=True, slots=True)
class StageInfo:
    """A stored stage. `rows` and `data_bytes` are None until it is sealed."""

    name: str
    fingerprint: str
    incarnation: str
    sealed: bool
    producers: int
    partitions: int
    rows: int | None
    data_bytes: int | None
    created_wall_seconds: float

    def path(self, job: str) -> StagePath:
        """Where the stage lives."""
        return StagePath(job, self.name, self.fingerprint, self.incarnation)


def stage_info(storage: Storage, path: StagePath) -> StageInfo:
    """Read the stage's log and return its entry for `stages()`."""
    stage = open_stage(storage, path)
    seal = read_state(stage).seal
    return StageInfo(
        path.name,
        path.fingerprint,
        path.incarnation,
        seal is not None,
        seal.producers if seal else stage.describe.producers,
        stage.describe.partitions,
        seal.rows if seal else None,
        seal.data_bytes if seal else None,
        stage.describe.created_wall_seconds,
    )
