"""Naive variants of `recovery` and `jobs`. N-numbers are those of the seed list."""

from mutations import Mutation

ASYNC = "tests/unit/recovery/test_async_interleavings.py tests/unit/recovery/test_async_machine.py"
JOB = "tests/unit/recovery/test_job_machine.py tests/unit/recovery/test_job_stops.py"
ENDING = "tests/pipelines/test_ending.py"

MUTATIONS = (
    Mutation(
        "N11",
        "a failure that arrives while the job is being scheduled is dropped",
        "recovery/job/machine.py",
        "        if phase is TaskPhase.FAILED:\n",
        "        if phase is TaskPhase.FAILED and self.phase is JobPhase.SCHEDULING:\n"
        "            return []\n"
        "        if phase is TaskPhase.FAILED:\n",
        f"{JOB} -k failure_in_every_phase",
    ),
    Mutation(
        "N11",
        "a task that finishes before the others start is forgotten by the barrier",
        "recovery/job/machine.py",
        "            actions += self._let_go(start, start.barrier.ended(message.task))\n",
        "            pass\n",
        f"{JOB} -k finishes_before",
    ),
    Mutation(
        "N12",
        "a start barrier that cannot be called off",
        "recovery/job/starts.py",
        "        self.cause = cause\n        return True",
        "        return False",
        "tests/unit/recovery/test_barrier.py",
    ),
    Mutation(
        "pipelines",
        "messages of an older attempt count",
        "recovery/job/machine.py",
        "if state is None or state.epoch != message.epoch or self.phase in ENDS:",
        "if state is None or self.phase in ENDS:",
        f"{JOB} -k another_epoch",
    ),
    Mutation(
        "pipelines",
        "with too few slots a source that lost its own waits like everybody else",
        "recovery/job/starts.py",
        "behind[max(0, len(behind) - over) :] if launch and over > 0 else []",
        "[]",
        "tests/unit/recovery/test_waves.py",
    ),
    Mutation(
        "pipelines",
        "two tries of one attempt report side by side",
        "recovery/pipeline/lines/storage_line.py",
        "            if isinstance(self._log.append(self._slot, self._sending), Lost):\n",
        "            if isinstance(self._log.append(self._slot, self._sending), Lost) and False:\n",
        "tests/unit/recovery/test_report_log.py",
    ),
    Mutation(
        "pipelines",
        "a task does not look whether anybody reads its reports",
        "recovery/pipeline/lines/storage_line.py",
        "        return self._strikes < _UNREAD_STRIKES\n",
        "        return True\n",
        "tests/unit/recovery/test_report_log.py",
    ),
    Mutation(
        "pipelines",
        "a consequence takes the place of the first cause",
        "recovery/job/machine.py",
        "        if first is not None and (failure.secondary or not first.secondary):",
        "        if False:",
        f"{JOB} -k cause",
    ),
    Mutation(
        "pipelines",
        "COMMITTED is written before shutdown",
        "recovery/job/ends.py",
        "        EndStep.NOTIFY,\n        EndStep.SHUTDOWN,\n        EndStep.WIN_COMMITTED,\n",
        "        EndStep.NOTIFY,\n        EndStep.WIN_COMMITTED,\n        EndStep.SHUTDOWN,\n",
        f"{ENDING} -k crash_behind",
    ),
    Mutation(
        "pipelines",
        "rows of a commit are published and not named by its record",
        "recovery/pipeline/task/commits.py",
        "            marker_floor=marker_floor,\n"
        "            effect=None if parked is None else PARKED.encode(parked),\n",
        "            marker_floor=marker_floor,\n",
        f"{ENDING} -k missed_notification",
    ),
    Mutation(
        "pipelines",
        "a source may go back",
        "recovery/pipeline/plan/positions.py",
        "        if self._value is not None and not self._advances(",
        "        if self._value is not None and self._advances(",
        "tests/pipelines/test_source_attempts.py -k forgets",
    ),
    Mutation(
        "N14",
        "a flag says that a call is under way, whichever it is",
        "recovery/calls/machine.py",
        '        """Call number `attempt` returned."""\n'
        "        if element.attempt != attempt or element.phase is not Phase.CALLING:",
        '        """Call number `attempt` returned."""\n'
        "        if element.phase is not Phase.CALLING:",
        ASYNC,
    ),
    Mutation(
        "N14",
        "a timer that was cancelled is trusted not to fire: only the attempt's number is looked at",
        "recovery/calls/machine.py",
        '        """Call number `attempt` raised."""\n'
        "        if element.attempt != attempt or element.phase is not Phase.CALLING:",
        '        """Call number `attempt` raised."""\n        if element.attempt != attempt:',
        ASYNC,
    ),
    Mutation(
        "N16",
        "the newest piece that is done is acknowledged",
        "recovery/calls/machine.py",
        "        return min(inside, default=self._next_ordinal)",
        "        return max((e + 1 for e in inside), default=self._next_ordinal)",
        "tests/unit/recovery/test_async_machine.py",
    ),
    Mutation(
        "N17",
        "a clock that was set back gives an element more time",
        "recovery/calls/settings.py",
        "        elapsed = max(0.0, wall_now - saved.first_wall_seconds)",
        "        elapsed = wall_now - saved.first_wall_seconds",
        "tests/unit/recovery/test_retry_budget.py",
    ),
    Mutation(
        "N19",
        "Spark is believed to retry a task of a local session",
        "jobs/deploy/preflight.py",
        "    if local is None:\n",
        "    if local is None or not local['tries']:\n",
        "tests/unit/jobs/test_task_tries.py",
    ),
    Mutation(
        "N19",
        "faults are tested on a session that retries nothing",
        "tests/spark/test_consume_faults.py",
        '("local[2,3]", folder / "root", folder)',
        '("local[2]", folder / "root", folder)',
        "tests/spark/test_consume_faults.py -k retried_from",
    ),
    Mutation(
        "retention",
        "a Spark consumer holds nothing back",
        "jobs/consume/run.py",
        "stage, [request.consumer], ids",
        "stage, [f'not {request.consumer}'.replace(' ', '-')], ids",
        "tests/spark/test_retention.py -k consume_holds",
    ),
)
