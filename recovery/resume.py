"""What to do with a stage that is asked for: reuse it, run what is missing, or start fresh. Pure.

The shell observes (the job log, DESCRIBE, which producers committed, whether SEAL stands) and acts;
everything that could be decided wrongly is here, as a function of values.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from durable_shuffle.serialization.errors import IncompatibleError
from durable_shuffle.shuffle.base.words import StageAction, StageStatus

ReusePolicy = Literal["auto", "never", "require"]

MAX_COMMITS = 8
"""Commits of one producer: a storage that lost its data this often is not trusted with it again."""


@dataclass(frozen=True, slots=True)
class WantedStage:
    """The stage as the plan of this run describes it."""

    producers: int | None
    """M, None if not planned yet (a sealed stage needs no plan)."""
    splits: str
    """Digest of the input splits, "" where unknown."""
    unproven: tuple[str, ...]
    """What is not proven to be the same in each run: with it, commits of two runs must not mix."""


@dataclass(frozen=True, slots=True)
class KnownStage:
    """The newest incarnation with the same name and fingerprint, as storage shows it."""

    sealed: bool
    producers: int | None
    splits: str
    committed: frozenset[int]
    """Producers whose COMMIT counts."""
    damaged: frozenset[int] = frozenset()
    """Producers of a sealed stage whose data `verify --repair` found lost."""
    commits: int = 0
    """Most COMMITs that a damaged producer has, repairs included."""
    unrecognised: tuple[str, ...] = ()
    """What its rows depend on although the fingerprint does not name it."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """The stage is sealed: read it, run nothing."""

    status: ClassVar = StageStatus.STORED
    action: ClassVar = StageAction.REUSED
    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Same identity: keep what is committed, run `missing`."""

    status: ClassVar = StageStatus.PARTIAL
    action: ClassVar = StageAction.RESUMED
    missing: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Repair:
    """The stage is sealed, and data of `damaged` is lost: run these again, and nothing else."""

    status: ClassVar = StageStatus.DAMAGED
    action: ClassVar = StageAction.REPAIRED
    damaged: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Fresh:
    """Make a new incarnation and run every producer."""

    status: ClassVar = StageStatus.ABSENT
    action: ClassVar = StageAction.COMPUTED
    why: str


Decision = Reuse | Resume | Repair | Fresh


def decide(
    wanted: WantedStage,
    found: KnownStage | None,
    policy: ReusePolicy,
    miss: str = "",
) -> Decision:
    """Decide on one stage.

    Args:
        found: None if no stage has this name and fingerprint.
        miss: why there is none, for people.

    Raises:
        IncompatibleError: policy "require" and the stage cannot be reused.
    """
    decision = _decide(wanted, found, policy, miss)
    if policy == "require" and isinstance(decision, Fresh):
        raise IncompatibleError(f"reuse='require' but the stage must be computed: {decision.why}")
    return decision


def _decide(
    wanted: WantedStage,
    found: KnownStage | None,
    policy: ReusePolicy,
    miss: str,
) -> Decision:
    if policy == "never":
        return Fresh("reuse='never' was asked for")
    if found is None:
        return Fresh(miss or "no stage with this name and fingerprint is stored")
    if found.unrecognised:
        return Fresh(unrecognised(found.unrecognised))
    if found.sealed and not found.damaged:
        return Reuse("stored under the same fingerprint")
    if found.commits >= MAX_COMMITS:
        return Fresh(f"data of one map task was lost after {found.commits} commits")
    if found.producers != wanted.producers:
        return Fresh(f"other number of map tasks: stored={found.producers} now={wanted.producers}")
    if found.splits != wanted.splits:
        return Fresh("other input splits for the same number of map tasks")
    if (found.committed or found.damaged) and wanted.unproven:
        names = ", ".join(wanted.unproven)
        return Fresh(
            f"{names}: rows may be others in another run, so commits of two runs must not mix"
        )
    if found.damaged:
        lost = tuple(sorted(found.damaged))
        return Repair(lost, f"same fingerprint, data of {len(lost)} map tasks is lost")
    missing = tuple(p for p in range(wanted.producers or 0) if p not in found.committed)
    return Resume(missing, f"same fingerprint, {len(found.committed)} map tasks are stored")


def unrecognised(reasons: Iterable[str]) -> str:
    """Return why stored rows are good for one call only, for people."""
    return (
        f"the stored rows cannot be recognized in another run: they depend on {'; '.join(reasons)}"
    )


def explain_miss(wanted: Mapping[str, str], stored: Iterable[Mapping[str, str]]) -> str:
    """Name the aspects in which an identity differs from the one most like it, for people.

    Args:
        stored: at least one; among equally similar ones the last one counts.
    """
    near = min((_differing(wanted, one) for one in reversed([*stored])), key=len)
    return f"differs from the stored stage in: {', '.join(near)}" if near else "nothing differs"


def _differing(wanted: Mapping[str, str], stored: Mapping[str, str]) -> list[str]:
    return [k for k in sorted({*wanted, *stored}) if wanted.get(k) != stored.get(k)]
