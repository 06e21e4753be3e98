"""Which partitions of the stages below each task of a piece reads."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from durable_shuffle.jobs.query.cuts import PlanPiece, read_alike, union_is_zipped
from durable_shuffle.jobs.query.native_stage import (
    NativeStage,
    Source,
    partition_bytes,
    partitions_of,
)
from durable_shuffle.jobs.query.skewed_joins import divisible_sides, is_only_mapped
from durable_shuffle.recovery.grouping import GroupingRule, group_alike
from durable_shuffle.recovery.skew import Read, Side, SkewRule, split_skewed
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.read.sealed_reader import ordered_extents
from durable_shuffle.shuffle.seal.suspect import noted

_PREFIX = "spark.durableShuffle.group."
"""Of the settings of grouping; a stage records them beside the settings that split files."""
_GROUPING = ("targetBytes", "tasks", "leastBytes")
_SKEW = ("skewBytes", "skewFactor", "sliceBytes")
_REBALANCE = "rebalanceBytes"
_TURNS, _TURNS_FAR = 3, 1
"""Tasks per core, if there is enough to read, on a folder and on other storage. More tasks are
shorter: a killed driver loses less work, and a slow task delays its stage less. But where each
request takes its time, a task waits for four, one after the other."""
_SPARK = "spark.sql.adaptive."
_SWITCHES = (
    _SPARK + "coalescePartitions.enabled",
    _SPARK + "optimizeSkewsInRebalancePartitions.enabled",
    _SPARK + "skewJoin.enabled",
    _SPARK + "skewJoin.skewedPartitionFactor",
    _SPARK + "enabled",
)
_SIZES = (
    _SPARK + "skewJoin.skewedPartitionThresholdInBytes",
    _SPARK + "advisoryPartitionSizeInBytes",
)

Reads = tuple[Read, ...]
"""Task number -> what the task reads of one stage."""


def asked_grouping(jvm: Any, session: Any) -> tuple[Any, ...]:
    """Ask a session for what `grouping_settings` takes; for a function of `in_one_call`."""
    values = [session.conf().get(name) for name in (*_SWITCHES, *_SIZES)]
    bytes_of = getattr(jvm, "org.apache.spark.network.util.JavaUtils").byteStringAsBytes
    sizes = [bytes_of(value) for value in values[len(_SWITCHES) :]]
    return session.sparkContext().defaultParallelism(), *values[: len(_SWITCHES)], *sizes


def grouping_settings(asked: Sequence[Any], *, is_far: bool) -> dict[str, str]:
    """Return the settings of grouping; Spark's switches count.

    Args:
        asked: from `asked_grouping`.
        is_far: whether a request to the storage takes long, as on all but a folder.
    """
    turns = _TURNS_FAR if is_far else _TURNS
    cores, *found = asked
    joins, rebalances, skews, factor, adapts = found[: len(_SWITCHES)]
    least, advisory = map(str, found[len(_SWITCHES) :])
    tasks = turns * cores
    values = [32 << 20, tasks, 1 << 20]
    settings = {_PREFIX + name: str(n) for name, n in zip(_GROUPING, values, strict=True)}
    if joins != "true":
        settings[_PREFIX + "coalesces"] = "false"
    if adapts != "true":
        return settings
    if rebalances == "true":
        settings[_PREFIX + _REBALANCE] = advisory
    if skews == "true":
        skew = [least, factor, advisory]
        settings |= {_PREFIX + name: text for name, text in zip(_SKEW, skew, strict=True)}
    return settings


def target_bytes(conf: Mapping[str, str]) -> int:
    """Return how many bytes a task should read at most."""
    return _number(conf, "targetBytes")


def _number(conf: Mapping[str, str], name: str) -> int:
    text = conf.get(_PREFIX + name, "")
    if not re.fullmatch("[0-9]{1,18}", text):
        raise _none_such(name, text)
    return int(text)


def _none_such(name: str, text: str) -> CorruptDataError:
    return CorruptDataError(f"no stage was planned with {_PREFIX + name}={text!r:.100}")


def site_reads(
    piece: PlanPiece, below: Mapping[int, Source], conf: Mapping[str, str]
) -> dict[int, Reads]:
    """Return node id of each site of a piece -> what its tasks read.

    Args:
        below: cut number -> stage, for all cuts that the piece reads.
        conf: current or recorded `grouping_settings`.
    """
    rule = GroupingRule(*(_number(conf, name) for name in _GROUPING))
    reads: dict[int, Reads] = {
        site: tuple((k, k + 1) for k in range(partitions_of(below[cut.number])))
        for site, cut in piece.sites.items()
    }
    for alike in read_alike(piece, union_is_zipped):
        sources = {site: below[piece.sites[site].number] for site in alike}
        sizes = {site: partition_bytes(source) for site, source in sources.items()}
        if len({len(side) for side in sizes.values()}) == 1:
            numbers = {piece.sites[site].number: sizes[site] for site in alike}
            if _PREFIX + "coalesces" in conf:
                groups = tuple((k, k + 1) for k in range(len(sizes[alike[0]])))
            else:
                groups = group_alike([numbers[n] for n in sorted(numbers)], rule)
            reads |= dict.fromkeys(alike, groups)
            reads |= _divided(piece, sources, sizes, groups, conf)
    return reads


def divided(number: int, reads: Reads) -> str:
    """Say that several tasks read a partition of an exchange."""
    shared = ", ".join(map(str, sorted({read[0] for read in reads if len(read) > 2})))
    return f"exchange {number}: several tasks read partition {shared}, because of skew"


def is_divided(reads: Reads) -> bool:
    """Return whether several tasks share a partition."""
    return any(len(read) > 2 for read in reads)


def _divided(
    piece: PlanPiece,
    sources: Mapping[int, Source],
    sizes: Mapping[int, Sequence[int]],
    groups: Sequence[tuple[int, int]],
    conf: Mapping[str, str],
) -> dict[int, Reads]:
    """Return the reads of sites of which several tasks share a partition; {} if there are none."""
    rule = _rule(piece, sources, conf)
    if rule is None or max(max(side) for side in sizes.values()) <= rule.least_bytes:
        return {}
    if any(isinstance(one, NativeStage) for one in sources.values()):
        return {}
    divisible: dict[int, bool] | None
    if len(sources) > 1:
        divisible = divisible_sides(piece, sources)
    else:
        divisible = {site: True for site in sources if is_only_mapped(piece, site)}
    if not divisible:
        return {}
    sides = [_side(sources[site], sizes[site], may=may) for site, may in divisible.items()]
    return dict(zip(divisible, split_skewed(sides, groups, rule), strict=True))


def _rule(piece: PlanPiece, sites: Collection[int], conf: Mapping[str, str]) -> SkewRule | None:
    """Return when partitions of sites that are read alike are divided; None if they never are."""
    if len(sites) > 1 and _PREFIX + _SKEW[0] in conf:
        least, factor, aim = _SKEW
        text = conf.get(_PREFIX + factor, "")
        try:
            times = float(text)
        except ValueError:
            raise _none_such(factor, text) from None
        return SkewRule(_number(conf, least), times, _number(conf, aim))
    rebalances = all(piece.sites[site].exchange.rebalances for site in sites)
    if len(sites) == 1 and rebalances and _PREFIX + _REBALANCE in conf:
        size = _number(conf, _REBALANCE)
        return SkewRule(size, 0.0, size)  # whatever the others are like
    return None


def _side(source: Source, sizes: Sequence[int], *, may: bool) -> Side:
    assert not isinstance(source, NativeStage)

    def extents(partition: int) -> list[int]:
        with noted(source.handle, RandomIds(), source.seal):
            found = ordered_extents(source.handle, source.seal, partition, partition + 1)
        return [extent.length for extent in found]

    return Side(sizes, may, extents)
