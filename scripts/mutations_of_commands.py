"""Naive variants of the command planes: what each requirement warns of."""

from mutations import Mutation

UNIT = "tests/unit/recovery/"
ORDER, WANTED = f"{UNIT}test_command_log.py", f"{UNIT}test_wanted.py"
FRONTIERS, INBOX = f"{UNIT}test_frontiers.py", f"{UNIT}test_inbox.py"
SUCCESSION = "tests/pipelines/test_succession.py"
RECONNECTS = "tests/pipelines/test_operating_reconnects.py"

MUTATIONS = (
    Mutation(
        "R-MZ-1",
        "what handles a command can start something",
        "recovery/pipeline/commands/requests.py",
        "from durable_shuffle.recovery.job.ends",
        "from durable_shuffle.recovery.pipeline.lines.launcher import Threads\n"
        "from durable_shuffle.recovery.job.ends",
        WANTED,
    ),
    Mutation(
        "R-MZ-2",
        "a coordinator goes on behind a newer one",
        "recovery/pipeline/commands/emitter.py",
        "if slot.generation > self._generation:",
        "if slot.generation > self._generation + 99:",
        f"{SUCCESSION} -k of_four",
    ),
    Mutation(
        "R-MZ-3",
        "commands are obeyed as they arrive",
        "recovery/pipeline/commands/orders.py",
        "            self._early[slot] = decided\n",
        "            self.next_slot, self._early, self._last = slot, {slot: decided}, None\n",
        f"{ORDER} -k same_sequence",
    ),
    Mutation(
        "R-MZ-4",
        "start positions do not travel with the command",
        "recovery/pipeline/coordinator/logs.py",
        "            self._positions.update(look.positions)\n",
        "",
        f"{SUCCESSION} -k all_tasks_begin",
    ),
    Mutation(
        "R-MZ-5",
        "a list is forgotten with the coordinator that heard it",
        "recovery/pipeline/commands/orders.py",
        "        self.wanted = handle(self.wanted, command).wanted\n",
        "        self.wanted = handle(self.wanted, command).wanted\n"
        "        if command.KIND == 'RECONCILE':\n"
        "            self.wanted = Wanted()\n",
        f"{SUCCESSION} -k list_goes_on",
    ),
    Mutation(
        "R-MZ-6",
        "whatever is seen is reported",
        "recovery/pipeline/coordinator/reporter.py",
        "        before = self._seen.get(part, Frontier())\n",
        "        self.ask([part])\n        before = self._seen.get(part, Frontier())\n",
        FRONTIERS,
    ),
    Mutation(
        "R-MZ-7",
        "reports go back with a restart",
        "recovery/pipeline/coordinator/reporter.py",
        "Frontier(max(before.records, frontier.records), frontier.final)",
        "Frontier(frontier.records, frontier.final)",
        FRONTIERS,
    ),
    Mutation(
        "R-MZ-8",
        "what was said to somebody else is not said again",
        "recovery/pipeline/coordinator/reporter.py",
        "self._reported = {part: Frontier() for part in parts}",
        "self._reported = {part: self._reported.get(part, Frontier()) for part in parts}",
        FRONTIERS,
    ),
    Mutation(
        "R-MZ-9",
        "a list counts without what cannot be in it",
        "recovery/pipeline/commands/requests.py",
        '            raise InvalidInputError(f"a full list does not hold {command.KIND}")',
        "            continue",
        WANTED,
    ),
    Mutation(
        "R-MZ-10",
        "the same description is started anew",
        "recovery/pipeline/plan/updates.py",
        "if known.get(name) == part.digest",
        "if known.get(name) != part.digest",
        WANTED,
    ),
    Mutation(
        "R-MZ-11",
        "the new attempt starts while the old one ends",
        "recovery/job/machine.py",
        "if left and self.restart_at is None",
        "if self.restart_at is None",
        f"{UNIT}test_job_update.py",
    ),
    Mutation(
        "R-MZ-12",
        "a drop is reported again to whoever comes",
        "recovery/pipeline/coordinator/reporter.py",
        "        self._dropped = []\n\n    def report",
        "        self._dropped = self._dropped or ['b']\n\n    def report",
        FRONTIERS,
    ),
    Mutation(
        "R-MZ-13",
        "each job of the companion has a thread of its own",
        "recovery/pipeline/coordinator/inbox.py",
        "        self._work.put((work, done, failed))\n",
        "        job = work, done, failed\n"
        "        each = threading.Thread(target=lambda: self._inbox.put(_outcome(*job)))\n"
        "        each.daemon = True\n"
        "        each.start()\n",
        f"{INBOX} -k later",
    ),
    Mutation(
        "R-MZ-14",
        "what was dropped is started again by a late complaint",
        "recovery/pipeline/coordinator/complaints.py",
        "for part, cause in ready.items() if part in parts]",
        "for part, cause in ready.items()]",
        FRONTIERS,
    ),
    Mutation(
        "R-MZ-15",
        "a complaint is a restart, at once",
        "recovery/pipeline/coordinator/complaints.py",
        "self._due.setdefault(part, (now + self._delay_seconds, cause))",
        "self._due[part] = (now, cause)",
        FRONTIERS,
    ),
    Mutation(
        "R-MZ-16",
        "a consumer that comes later begins at what was released",
        "recovery/pipeline/coordinator/stage_work.py",
        "        elif released[producer]:\n",
        "        elif False:\n",
        f"{RECONNECTS} -k release_moves",
    ),
    Mutation(
        "R-MZ-18",
        "a list that does not know of a drop forgets it",
        "recovery/pipeline/commands/requests.py",
        "drops=(*left, *state.drops)",
        "drops=state.drops",
        WANTED,
    ),
    Mutation(
        "R-MZ-19",
        "an attempt writes before it is allowed to",
        "recovery/pipeline/task/link.py",
        "        if self._start is None:\n            raise FencedError",
        "        if False:\n            raise FencedError",
        "tests/pipelines/test_consumer_attempts.py -k may_not_write",
    ),
    Mutation(
        "R-MZ-20",
        "settings are what a task began with",
        "recovery/pipeline/task/link.py",
        "            self._settings = command.settings\n        elif",
        "            pass\n        elif",
        f"{ORDER} -k same_sequence",
    ),
    Mutation(
        "R-MZ-21",
        "what has finished is started, to find out that it has",
        "recovery/pipeline/coordinator/stage_work.py",
        "finished = frozenset(task for task, (done, _) in states.items() if done)",
        "finished: frozenset[str] = frozenset()",
        f"{RECONNECTS} -k has_finished",
    ),
    Mutation(
        "R-MZ-22",
        "an answer wakes nobody",
        "recovery/pipeline/coordinator/inbox.py",
        "            self._inbox.put(_outcome(*job))\n",
        "            _outcome(*job)\n",
        f"{INBOX} -k no_wake_up",
    ),
    Mutation(
        "commands",
        "garbage in the command log is passed over",
        "recovery/pipeline/commands/emitter.py",
        "        slot = decode_slot(existing, name=key)\n",
        "        try:\n"
        "            slot = decode_slot(existing, name=key)\n"
        "        except Exception:\n"
        "            self._next_slot += 1\n"
        "            return\n",
        f"{ORDER} -k garbage",
    ),
)
