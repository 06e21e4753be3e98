"""`consume` and `register_consumers`: Python functions over stored stages, and who they are."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from pyspark.sql import DataFrame

from durable_shuffle.jobs.consume.run import Consumers, check_consume
from durable_shuffle.jobs.engine.checks import NO_STREAM, check_columns, check_frame
from durable_shuffle.jobs.stages.driver import Driver
from durable_shuffle.jobs.stages.frame_calls import FrameCalls
from durable_shuffle.jobs.stages.healing import healing
from durable_shuffle.jobs.stages.report import ConsumerReport
from durable_shuffle.jobs.stages.stored import StageInfo
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.release.unused import register_used


class ConsumeCalls:
    """These calls of one driver."""

    def __init__(self, driver: Driver, frames: FrameCalls) -> None:
        self._driver, self._frames = driver, frames
        self.consumers = Consumers(
            engine=driver.engine,
            storage=driver.storage,
            task_storage=driver.shared_storage,
            log=driver.log,
            settings=driver.settings,
            clock=driver.clock,
            ids=driver.ids,
        )

    def consume(
        self, df_or_stage: DataFrame | StageInfo, asked: Sequence[Any], name: str | None
    ) -> DataFrame | None:
        """Do what `DurableShuffle.consume` says; `asked` is what `check_consume` takes."""
        request = check_consume(*asked)
        if not isinstance(df_or_stage, StageInfo):
            check_frame(df_or_stage, streaming=NO_STREAM)
            check_columns(df_or_stage.schema)
        if self._path(df_or_stage) is None:
            rows = cast("DataFrame", df_or_stage)
            df_or_stage = self._frames.checkpoint(rows, name, None).run()

        def run() -> tuple[DataFrame | None, ConsumerReport]:
            path = self._path(df_or_stage)  # another one if the stage had to start afresh
            assert path is not None
            return self.consumers.run(path, request)

        def mend() -> bool:
            return not isinstance(df_or_stage, StageInfo) and self._frames.mend(df_or_stage)

        frame, report = healing(run, mend)
        self._driver.done.consumer_reports.append(report)
        return frame

    def register(
        self, df_or_stage: DataFrame | StageInfo, names: Iterable[str], *, closed: bool
    ) -> tuple[str, ...]:
        """Do what `DurableShuffle.register_consumers` says."""
        path = self._path(df_or_stage)
        if path is None:
            raise InvalidInputError(
                "consumers register with a stored stage: give what repartition() or checkpoint() "
                "of this object returned, or an entry of stages()"
            )
        driver = self._driver
        stage, now = open_stage(driver.storage, path), driver.clock.wall()
        return register_used(driver.log, stage, names, ids=driver.ids, now=now, closed=closed)

    def _path(self, df_or_stage: DataFrame | StageInfo) -> StagePath | None:
        """Return where a stage is stored; None if it is not a stage of this driver."""
        if isinstance(df_or_stage, StageInfo):
            return df_or_stage.path(self._driver.job)
        return self._frames.path(df_or_stage)
