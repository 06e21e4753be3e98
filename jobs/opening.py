"""Opens a job: checks what the user gave, claims the job, and makes what its calls share."""

import logging
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any, Literal, cast

from pyspark.sql import SparkSession

from durable_shuffle.jobs.claims import hold_claim, read_before_claim
from durable_shuffle.jobs.deploy.preflight import default_url, preflight
from durable_shuffle.jobs.deploy.ship import is_connect, ship
from durable_shuffle.jobs.engine.checks import check_option, check_version
from durable_shuffle.jobs.engine.classic import ClassicEngine
from durable_shuffle.jobs.engine.engine import Engine
from durable_shuffle.jobs.identity.jvm.document import compile_ahead
from durable_shuffle.jobs.java import classes_of
from durable_shuffle.jobs.jvm_rows.route import RowsIn
from durable_shuffle.jobs.options import PREFIX, configured, retention_from, settings_from
from durable_shuffle.jobs.outcome import tell_job
from durable_shuffle.jobs.query.at_risk import NOTHING, Risk, risk_from
from durable_shuffle.jobs.stages.driver import Driver
from durable_shuffle.jobs.stages.identity import SeenInputs
from durable_shuffle.jobs.stages.runner import StageRunner
from durable_shuffle.jobs.stages.store import StageStore
from durable_shuffle.recovery.resume import ReusePolicy
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock, IdSource, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.side_by_side import side_by_side
from durable_shuffle.shuffle.log.layout import check_name
from durable_shuffle.shuffle.release.unused import KeepUsed, Retention, kept_by
from durable_shuffle.shuffle.storage.local import is_far
from durable_shuffle.shuffle.storage.open import open_storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.storage.storage_clock import clock_of

_LOG = logging.getLogger(__name__)


def open_driver(
    spark: SparkSession,
    url: str | PathLike[str] | None,
    clock: Clock,
    ids: IdSource,
    *,
    job: str | None,
    version: str | None,
    reuse: ReusePolicy | None,
    on_conflict: Literal["take_over", "fail"] | None,
    lost_records: Literal["refuse", "ignore"] | None,
    retention: Retention | None,
    rows_in: RowsIn | None,
    at_risk: Risk | None,
    storage_options: Mapping[str, object] | None,
    settings: Settings | None,
) -> Driver:
    """Claim a job. Arguments and errors are those of `DurableShuffle`."""
    conf = configured(spark)
    job = job if job is not None else conf.get("job")
    if job is None:
        raise InvalidInputError(
            "no job: pass DurableShuffle(..., job=...) or set " + PREFIX + "job"
        )
    check_name("job", job)
    version = version if version is not None else conf.get("version")
    check_version(version)
    reuse = reuse or cast("ReusePolicy", conf.get("reuse", "auto"))
    check_option("reuse", reuse, ("auto", "never", "require"))
    on_conflict = on_conflict or cast("Any", conf.get("on_conflict", "take_over"))
    check_option("on_conflict", on_conflict, ("take_over", "fail"))
    lost_records = lost_records or cast("Any", conf.get("lost_records", "refuse"))
    check_option("lost_records", lost_records, ("refuse", "ignore"))
    rows_in = rows_in or cast("RowsIn", conf.get("rows_in", "auto"))
    check_option("rows_in", rows_in, ("auto", "jvm", "python"))
    at_risk = at_risk if at_risk is not None else cast("Risk", conf.get("at_risk", NOTHING))
    at_risk_seconds = risk_from(at_risk)
    if retention is None:
        given = conf.get("retention")
        retention = KeepUsed() if given is None else cast("Any", retention_from(given))
    keep = kept_by(retention)
    settings = settings or settings_from(conf)
    place = fspath(url) if isinstance(url, PathLike) else url
    place = place or conf.get("url") or default_url(spark)
    patience = settings.storage_call_seconds
    task_storage = open_storage(place, storage_options, call_seconds=patience)
    connect = is_connect(spark)
    if connect and rows_in == "jvm":  # before an older driver loses the job
        raise InvalidInputError("rows_in='jvm' needs classic Spark; use rows_in='auto'")
    if not connect:
        compile_ahead(classes_of(spark))
    ship(spark)
    compared = clock if type(clock) is SystemClock else None  # a test has a time of its own
    (storage, ahead), before = side_by_side(
        lambda: preflight(spark, task_storage, job, ids, compared),
        lambda: read_before_claim(task_storage, job),
        far=is_far(task_storage),
    )
    clock, counting = clock_of(clock, ahead), CountingStorage(storage)
    take_over = on_conflict == "take_over"
    log = hold_claim(
        *(counting, job),
        ids=ids,
        clock=clock,
        take_over=take_over,
        before=before if take_over and storage is task_storage else None,
    )
    where = (counting.description, job)
    _LOG.info("job %s below %s: driver %d", job, counting.description, log.generation)
    tell_job(*where, log.state.owner)
    if connect:
        from durable_shuffle.jobs.engine.connect import ConnectEngine  # classic does without

        engine: Engine = ConnectEngine(spark)
    else:
        engine = ClassicEngine(spark, rows_in, where)
    store = StageStore(
        storage=counting,
        task_storage=task_storage,
        log=log,
        policy=reuse,
        settings=settings,
        clock=clock,
        ids=ids,
        engine=engine,
        lost_records=lost_records,
    )
    seen = SeenInputs(spark, where)
    runner = StageRunner(engine, store, version, settings, ids, seen)
    of_runs = engine, runner, at_risk_seconds, retention, keep, clock, ids, settings
    return Driver(spark, job, log, counting, storage, *of_runs)
