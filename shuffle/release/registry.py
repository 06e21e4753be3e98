"""The registry of a stage: its consumers and their progress.

REGISTER and RELEASE share the stage log. Whichever is won first decides, and a REGISTER after a
RELEASE is refused. Listings of consumers only suggest where to look. A consumer that no listing
shows counts as not begun, which can only keep data.
"""

from collections import defaultdict
from collections.abc import Iterable

from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.log.layout import ConsumerPath, consumers_prefix, parse_consumer_key
from durable_shuffle.shuffle.log.records import Register
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, stage_log, stage_released
from durable_shuffle.shuffle.log.stage_fold import StageState
from durable_shuffle.shuffle.release.retention import Progress, ProgressOf, declare, least
from durable_shuffle.shuffle.storage.contract import Storage


def register_consumers(
    stage: StageHandle,
    names: Iterable[str],
    *,
    ids: IdSource,
    generation: int,
    closed: bool = True,
) -> tuple[str, ...]:
    """Declare the consumers of a stage. From here on it keeps its data until they have read it.

    Idempotent for the same names. Without `closed`, others may register later, and no data is
    released as consumed until the set is closed.

    Returns:
        All registered consumers, ascending.

    Raises:
        InvalidInputError: a name is bad, the set leaves out a registered consumer, or another set
            was declared and closed.
        NotFoundError: the stage was released, or part of it was released before a new consumer
            registered.
    """
    names, record_id = tuple(names), ids.new_id()

    def unless_registered(state: StageState) -> Register | None:
        if state.release is not None:
            raise stage_released(stage, state.release)
        wanted = declare(state.register, names, closed=closed, stage=stage.path.prefix)
        if wanted is None:
            return None
        known = state.register.consumers if state.register else ()
        new = sorted(set(wanted.consumers).difference(known))
        if new and state.upto is not None:
            raise NotFoundError(
                f"the stage's first records were released before consumer {new[0]} registered: "
                f"{stage.path.prefix!r} cause={state.upto.cause}"
            )
        return Register(record_id, generation, wanted.consumers, wanted.closed)

    state, _ = stage_log(stage).decide(read_state(stage), unless_registered)
    return state.register.consumers if state.register else ()


def consumer_tasks(storage: Storage, job: str, consumer: str) -> list[ConsumerPath]:
    """Return the tasks of a consumer that a listing shows. The listing may be incomplete.

    Raises:
        CorruptDataError: an object has a name that this library never gives.
    """
    found: dict[ConsumerPath, None] = {}
    for info in storage.list(f"{consumers_prefix(job)}{consumer}/"):
        path, _, _ = parse_consumer_key(info.key)
        found[path] = None
    return sorted(found, key=lambda path: path.task)


def progress_in(stage: StageHandle, consumers: Iterable[str]) -> ProgressOf:
    """Return the consumers' progress in each subpartition of a stage that they have begun.

    Raises:
        CorruptDataError, IncompatibleError: a consumer's log cannot be read; nothing is guessed.
    """
    folder = stage.path.folder
    tasks: dict[tuple[str, int], list[Progress]] = defaultdict(list)
    for consumer in consumers:
        for path in consumer_tasks(stage.storage, stage.path.job, consumer):
            state = read_resume_set(SlotLog(stage.storage, path.log_prefix))
            for (read, k), cursor in state.inputs.items():
                if read == folder:
                    tasks[consumer, k].append(Progress(state.finished, cursor.acked))
    stray = [key for key in tasks if not 0 <= key[1] < stage.describe.partitions]
    if stray:
        raise CorruptDataError(
            f"a consumer reads a subpartition that the stage does not have: consumer={stray[0][0]} "
            f"subpartition={stray[0][1]} stage={stage.path.prefix!r}"
        )
    return {key: least(found) for key, found in tasks.items()}
