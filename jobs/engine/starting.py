"""When Spark starts map tasks: behind the driver's first records of a stage, or beside them."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from pyspark import SparkContext

from durable_shuffle.jobs.engine.tasks import MapJob
from durable_shuffle.shuffle.base.clock import RandomIds

_CANCELS_EVERY_SECONDS = 0.2


@contextmanager
def starting(context: SparkContext, job: MapJob) -> Iterator[None]:
    """Run the block, which runs the map tasks, once they may start.

    If the tasks look for what they wait for, they start at once. They are cancelled if it turns out
    that they must not go on.

    Raises:
        Exception: that of `job.may_start`, before any of the block.
    """
    if not job.looks:
        job.may_start()
        yield
        return
    tag, over = f"durable-shuffle-{RandomIds().new_id()}", threading.Event()

    def watch() -> None:
        try:
            job.may_start()
        except BaseException:
            while not over.is_set():  # a job that Spark does not know yet cannot be cancelled
                with suppress(Exception):
                    context.cancelJobsWithTag(tag)
                over.wait(_CANCELS_EVERY_SECONDS)
            raise

    context.addJobTag(tag)
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="durable-start") as pool:
            watching = pool.submit(watch)
            try:
                yield
            except Exception:
                over.set()
                watching.result()  # its error is the cause
                raise
            finally:  # Ctrl-C, too: else a call that failed would cancel for ever
                over.set()
            watching.result()
    finally:
        with suppress(Exception):  # of a stopped context; the first error counts
            context.removeJobTag(tag)
