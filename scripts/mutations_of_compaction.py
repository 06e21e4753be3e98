"""Naive variants of compaction and of the planning of requests."""

from mutations import Mutation

COMPACTION = "tests/unit/shuffle/test_compaction.py"

MUTATIONS = (
    Mutation(
        "compaction",
        "a cleaner deletes what no COMPACT names, without an ABORT",
        "shuffle/compaction.py",
        "        if isinstance(stage.log().append(state.next_slot, data), Won):\n"
        "            return True",
        "        del data\n        return True",
        f"{COMPACTION} -k cleaner",
    ),
    Mutation(
        "compaction",
        "a compaction goes on behind its own ABORT",
        "shuffle/compaction.py",
        "            if found.attempt == record.record_id:",
        "            if not found.attempt:",
        f"{COMPACTION} -k cleaner",
    ),
    Mutation(
        "compaction",
        "a compaction without an answer deletes what it wrote",
        "shuffle/compaction.py",
        "    return _commit(stage, record, state.seal_slot, written)",
        "    try:\n        return _commit(stage, record, state.seal_slot, written)\n"
        "    except Exception:\n        give_back(stage.storage, written)\n        raise",
        "tests/faults/test_compaction_crash_points.py -k unknown",
    ),
    Mutation(
        "compaction",
        "frames are moved without a look at their checksums",
        "shuffle/compaction.py",
        "            _check_frames(stage, int(subpartitions[n]), entries[n], found[n], settings)",
        "            pass",
        f"{COMPACTION} -k damaged",
    ),
    Mutation(
        "compaction",
        "the position of an extent that has moved is taken for the one before",
        "shuffle/compaction.py",
        '        rewritten["segment"][at] = number | COMPACTED',
        '        rewritten["segment"][at] = number',
        COMPACTION,
    ),
    Mutation(
        "requests",
        "ranges of one object are joined, whatever stands between",
        "shuffle/range_plan.py",
        "0 <= gap <= near_bytes",
        "gap >= 0",
        "tests/unit/shuffle/test_range_plan.py",
    ),
)
