"""Naive variants of compaction, of repair, of the planning of requests, of logs and extents."""

from mutations import Mutation

COMPACTION = "tests/unit/shuffle/test_compaction.py"
REPAIR = "tests/unit/shuffle/test_repair.py"
REPAIR_RACES = "tests/unit/shuffle/test_repair_races.py"

MUTATIONS = (
    Mutation(
        "compaction",
        "a cleaner deletes what no COMPACT names, without an ABORT",
        "shuffle/seal/rewrite.py",
        "        return None if decided else abort",
        "        return None",
        f"{COMPACTION} -k cleaner",
    ),
    Mutation(
        "compaction",
        "a compaction goes on behind its own ABORT",
        "shuffle/seal/rewrite.py",
        "        cause = state.void.get(record.record_id)",
        "        cause = None",
        f"{COMPACTION} -k cleaner",
    ),
    Mutation(
        "compaction",
        "a compaction without an answer deletes what it wrote",
        "shuffle/repair/compaction.py",
        "    counted = commit_rewrite(stage, state, record, written)",
        "    try:\n        counted = commit_rewrite(stage, state, record, written)\n"
        "    except Exception:\n        give_back(stage.storage, written)\n        raise",
        "tests/faults/test_compaction_crash_points.py -k unknown",
    ),
    Mutation(
        "compaction",
        "frames are moved without a look at their checksums",
        "shuffle/repair/compaction.py",
        "        check_frames(stage, int(subpartitions[n]), entries[n], [parts[n]], settings)",
        "        pass",
        f"{COMPACTION} -k damaged",
    ),
    Mutation(
        "compaction",
        "the position of an extent that has moved is taken for the one before",
        "shuffle/repair/compaction.py",
        '        rewritten["segment"][positions] = tile | COMPACTED',
        '        rewritten["segment"][positions] = tile',
        COMPACTION,
    ),
    Mutation(
        "repair",
        "a COMPACT that was made from replaced data counts",
        "shuffle/log/stage.py",
        "record.base != state.seal_slot",
        "False",
        f"{REPAIR_RACES} -k landed_behind",
    ),
    Mutation(
        "repair",
        "a compaction goes on past a REPLACE, and tells that it won",
        "shuffle/seal/rewrite.py",
        "cause is None and not too_late(state, record):",
        "cause is None and (isinstance(record, Compact) or not too_late(state, record)):",
        f"{REPAIR_RACES} -k began_before",
    ),
    Mutation(
        "repair",
        "a COMPACT that counts is the end of all others that change the index",
        "shuffle/seal/rewrite.py",
        "        decided = attempt in state.counted or",
        "        decided = state.compact is not None or attempt in state.counted or",
        f"{REPAIR_RACES} -k replace_on_its_way",
    ),
    Mutation(
        "repair",
        "what the storage did not serve is taken for lost",
        "shuffle/repair/stage.py",
        "_DAMAGE = (ErrorKind.NOT_FOUND, ErrorKind.CORRUPT_DATA)",
        "_DAMAGE = tuple(ErrorKind)",
        f"{REPAIR_RACES} -k does_not_answer",
    ),
    Mutation(
        "repair",
        "a repair stops at the COMMIT that it is to replace",
        "shuffle/log/producer_log.py",
        "        if state.counting(after=after) is not None:",
        "        if state.counting() is not None:",
        f"{REPAIR} -k compaction",
    ),
    Mutation(
        "repair",
        "a repair deletes what it replaces",
        "shuffle/repair/stage.py",
        "        lost = tuple(p for p in",
        "        for p in instead:\n"
        "            old = self._walk.commits[p][1]\n"
        "            keys = [\n"
        "                walk.path.segment_key(p, old.record_id, s.number) for s in old.segments\n"
        "            ]\n"
        "            self._stage.storage.delete(keys)\n"
        "        lost = tuple(p for p in",
        f"{REPAIR} -k put_together",
    ),
    Mutation(
        "requests",
        "ranges of one object are joined, whatever stands between",
        "shuffle/storage/range_plan.py",
        "0 <= gap <= near_bytes",
        "gap >= 0",
        "tests/unit/shuffle/test_range_plan.py",
    ),
    Mutation(
        "typed log",
        "what was proposed first is sent for every slot, whatever came between",
        "shuffle/log/typed_log.py",
        "            wanted = propose(state)\n",
        "            wanted = propose(state) if not _ else wanted\n",
        "tests/unit/shuffle/test_typed_log.py tests/unit/shuffle/test_producer_log.py",
    ),
    Mutation(
        "typed log",
        "a record of another author is passed without a look",
        "shuffle/log/typed_log.py",
        "            state = self.fold(state, record, self.key(state.next_slot))\n            if",
        "            state = self.fold(state, wanted, self.key(state.next_slot))\n            if",
        "tests/unit/shuffle/test_producer_log.py",
    ),
    Mutation(
        "fates",
        "the last record that names an attempt is its fate",
        "shuffle/log/producer_log.py",
        "    if named in state.fates:\n        return state\n",
        "",
        "tests/unit/shuffle/test_producer_log.py",
    ),
    Mutation(
        "fates",
        "what stands behind CLOSED counts",
        "shuffle/log/producer_log.py",
        "    if state.closed is not None:\n        return state\n",
        "",
        "tests/unit/shuffle/test_producer_log.py",
    ),
    Mutation(
        "extents",
        "rows delivered are not counted",
        "shuffle/read/extents.py",
        "        refuse_other_rows(before, committed=rows)\n",
        "",
        "tests/unit/shuffle/test_extents.py",
    ),
    Mutation(
        "memory",
        "verify holds the extents of all producers",
        "shuffle/verify/stage.py",
        "check_segments(self.storage, self._segment_tasks())",
        "check_segments(self.storage, [*self._segment_tasks()])",
        "tests/unit/shuffle/test_verify_memory.py",
    ),
    Mutation(
        "memory",
        "a repair holds copies of the extents of all producers",
        "shuffle/repair/stage.py",
        "max(1, _HELD_COPIES // partitions)",
        "len(producers)",
        "tests/unit/shuffle/test_verify_memory.py",
    ),
)
