"""What must never be true of a log producer's log, its segments and its attempts' beliefs."""

from itertools import pairwise

from protocol.log_values import (
    AFTER_END,
    FALSE_LOSER,
    FALSE_WINNER,
    FENCED_APPENDED,
    GAP_IN_LOG,
    NAMED_OBJECT_GONE,
    NEWEST_FENCED,
    NOT_CONTIGUOUS,
    TWO_WRITERS,
    Create,
    LogState,
    Record,
)
from protocol.slots import record_in


def landing_damage(log: tuple[Record, ...], create: Create, *, won: bool) -> list[str]:
    """Name what a create does that lands on `log`."""
    slot, record = create
    damage = [GAP_IN_LOG] if slot > len(log) else []
    if not won:
        return damage
    if record.kind != "OPEN" and any(r.kind == "OPEN" and r.epoch > record.epoch for r in log):
        damage.append(FENCED_APPENDED)
    position = log[-1].position if log else 0
    start = record.segment.start if record.segment else record.position
    if start != position:
        damage.append(NOT_CONTIGUOUS)
    if log and log[-1].kind == "END":
        damage.append(AFTER_END)
    return damage


def log_damage(state: LogState) -> list[str]:
    """Name what is wrong with a state."""
    found: list[str] = []
    if any(r.segment is not None and r.segment not in state.objects for r in state.log):
        found.append(NAMED_OBJECT_GONE)
    writers = 0
    for who, me in enumerate(state.attempts):
        standing = record_in(state.log, me.slot) if me.slot >= 0 else None
        if me.phase in ("open", "done") and standing is not None:
            lost = standing.author not in (who, None)
            found += [FALSE_WINNER] if lost else []
        if me.phase in ("losing", "fenced") and me.request is not None:
            standing = record_in(state.log, me.request.slot)
            won = standing is not None and standing.author == who
            found += [FALSE_LOSER] if won else []
        free = me.slot + 1 == len(state.log)
        writers += me.phase in ("open", "written") and free
    if writers > 1:
        found.append(TWO_WRITERS)
    if _newest_fenced(state):
        found.append(NEWEST_FENCED)
    return found


def _newest_fenced(state: LogState) -> bool:
    """Whether an OPEN stands above one of a later launch."""
    opens = [r.author for r in state.log if r.kind == "OPEN" and r.author is not None]
    return any(later < earlier for earlier, later in pairwise(opens))
