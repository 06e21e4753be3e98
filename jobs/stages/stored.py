"""The calls of `DurableShuffle` about what is stored: list it, say who uses it, delete it."""

from abc import abstractmethod
from collections.abc import Iterable
from datetime import timedelta

from pyspark.sql import DataFrame

from durable_shuffle.jobs.stages.info import StageInfo, stage_info
from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.release.cleanup import Freed
from durable_shuffle.shuffle.release.registry import register_consumers
from durable_shuffle.shuffle.release.stages import (
    finish_releases,
    raise_first,
    release_consumed,
    release_stage_of,
    skipping_damaged,
)
from durable_shuffle.shuffle.storage.counting import CountingStorage


class StoredStages:
    """A part of `DurableShuffle`, which sets the attributes."""

    _storage: CountingStorage
    _log: JobLog
    _clock: Clock
    _ids: IdSource

    @abstractmethod
    def _path(self, df_or_stage: DataFrame | StageInfo) -> StagePath | None:
        """Return where that is stored; None if it is not a stage of this job."""

    def stages(self) -> list[StageInfo]:
        """Return the job's stored stages, oldest first."""
        return [stage_info(self._storage, path) for path in self._log.state.order]

    def register_consumers(
        self, df_or_stage: DataFrame | StageInfo, names: Iterable[str], *, closed: bool = True
    ) -> tuple[str, ...]:
        """Declare who consumes a stored stage: with `retention="when_consumed"` it is deleted once
        every one of them has finished.

        Args:
            df_or_stage: what `repartition` or `durable` of this object returned, or an entry of
                `stages()`.
            closed: False if others may register later; until then nothing is deleted.

        Returns:
            All registered consumers, ascending.

        Raises:
            InvalidInputError: not a stored stage, a bad name, or another set was declared before.
            NotFoundError: the stage was released.
        """
        path = self._path(df_or_stage)
        if path is None:
            raise InvalidInputError(
                "consumers register with a stored stage: give what repartition() or durable() of "
                "this object returned, or an entry of stages()"
            )
        stage = open_stage(self._storage, path)
        return register_consumers(
            stage, names, ids=self._ids, generation=self._log.generation, closed=closed
        )

    def release(self, name: str | None = None, older_than: timedelta | None = None) -> list[Freed]:
        """Delete stored stages for good.

        Args:
            name: only stages with this label.
            older_than: only stages described longer ago than this, by the wall clock.

        Returns:
            What each released stage gave back, including releases that an earlier driver had
            decided and not finished.

        Raises:
            NotFoundError: no stage ever had this label. Releasing a label twice is no error.
            FencedError: a newer driver claimed the job.
            CorruptDataError: with `older_than`, the age of a damaged stage is unknown. All others
                were released; without `older_than`, damaged ones as well.
            IncompatibleError: a stage is of another version; all others were released.
        """
        known = {path.name for path in (*self._log.state.order, *self._log.state.released)}
        if name is not None and name not in known:
            raise NotFoundError(
                f"job={self._log.state.job!r} never had a stage named {name!r}; it has had "
                f"{', '.join(sorted(known)) or 'none'}"
            )
        failed: list[DurableShuffleError] = []
        freed = finish_releases(self._log, self._storage, self._ids, failed)
        for path in list(self._log.state.order):
            if name is not None and path.name != name:
                continue
            with skipping_damaged(failed):
                if older_than is None or self._age(path) > older_than.total_seconds():
                    freed.append(release_stage_of(self._log, self._storage, path, self._ids))
        raise_first(failed)
        return freed

    def release_consumed(self) -> list[Freed]:
        """Delete the stages whose declared, closed set of consumers has finished everywhere.

        Returns:
            What each of them gave back.

        Raises:
            FencedError: a newer driver claimed the job.
            CorruptDataError, IncompatibleError: a stage's or a consumer's log cannot be read;
                of all other stages those that were consumed were released.
        """
        paths = list(self._log.state.order)
        failed: list[DurableShuffleError] = []
        freed = []
        for path in paths:
            with skipping_damaged(failed):
                done = release_consumed(self._log, self._storage, path, self._ids)
                if isinstance(done, Freed):
                    freed.append(done)
        raise_first(failed)
        return freed

    def _age(self, path: StagePath) -> float:
        return self._clock.wall() - open_stage(self._storage, path).describe.created_wall_seconds
