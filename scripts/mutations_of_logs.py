"""Naive variants of logs whose slots go, of tasks that start before a driver's records or at once,
and of segments that are on their way."""

from mutations import Mutation

TRIMMED = "tests/unit/shuffle/test_trimmed_logs.py"

MUTATIONS = (
    Mutation(
        "early tasks",
        "a task that started beside its driver's records does not wait for them",
        "shuffle/write/awaited.py",
        "        if verb in _WRITES:",
        "        if not verb:",
        "tests/unit/shuffle/test_awaiting_storage.py",
    ),
    Mutation(
        "gone slots",
        "who won an OPEN believes it, though the slot may have been one that was gone",
        "shuffle/write/log_producer.py",
        "        if tail.next_slot <= gone_below(stage)[producer]:",
        "        if not tail.next_slot:",
        f"{TRIMMED} -k went_meanwhile",
    ),
    Mutation(
        "gone slots",
        "an empty slot is the end of the log",
        "shuffle/read/log_feed.py",
        "        if self._slot >= self._gone:\n            return False",
        "        if self._slot >= 0:\n            return False",
        f"{TRIMMED} -k paused",
    ),
    Mutation(
        "gone slots",
        "OPENs go like all other records",
        "shuffle/release/upto.py",
        "if isinstance(records.get(s), Append | End) and s not in stays",
        "if s in records and s not in stays",
        f"{TRIMMED} -k random",
    ),
    Mutation(
        "requests",
        "a writer does not wait for the segment that is on its way",
        "shuffle/write/segments.py",
        "            self._write(markers)\n        self._wait()\n\n    def written_keys",
        "            self._write(markers)\n\n    def written_keys",
        "tests/unit/shuffle/test_segments_under_way.py",
    ),
    Mutation(
        "requests",
        "of two tasks of a run that begin at once the slower one stops",
        "shuffle/write/run_log.py",
        "if not owns(tail):  # another task of this run",
        "if True:  # another task of this run",
        "tests/unit/shuffle/test_run_log.py",
    ),
)
