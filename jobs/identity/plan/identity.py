"""Identity of a DataFrame's plan across JVM runs, for classic Spark.

The walk reads the analyzed plan after Spark's normalisation and cache look-up (`withCachedData`).
It is what the user wrote, with names resolved, and it shows cached relations. The optimized plan
is not used, because parts of it differ from run to run: filters that are inferred in the order of
hashed ids, values of current_timestamp(), local relations that are already computed, and the
number of cores.

An unseeded rand() gets its seed when the query is analyzed. So its fingerprint differs from run to
run, as its rows do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from pyspark import RDD
from pyspark.sql import DataFrame

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.functions.zones import zone_of_process
from durable_shuffle.jobs.identity.jvm.calls import Jvm
from durable_shuffle.jobs.identity.jvm.deep import deep_plans
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.files import ListedFiles
from durable_shuffle.jobs.identity.plan.functions import PlanFunctions
from durable_shuffle.jobs.identity.plan.leaves import KnownRdds, PlanLeaves
from durable_shuffle.jobs.identity.plan.moving import moving_values
from durable_shuffle.jobs.identity.plan.rdds import RddChain, micro_batch
from durable_shuffle.jobs.identity.plan.settings import (
    Settings,
    cached_settings,
    settings_digest,
)


@dataclass(frozen=True, slots=True)
class PlanIdentity:
    """The identity of a plan. If `unresolved` is empty, equal components mean equal rows."""

    components: dict[str, str]
    """Name -> 32 hex digits: plan, files, rows, settings, functions, stages_below, schema."""
    unresolved: tuple[str, ...] = ()
    functions: frozenset[str] = frozenset()
    """Those of them that are about what functions do; the others are about inputs."""
    """Why the plan cannot be recognised in another run, one sentence each; empty if it can."""
    reads: tuple[str, ...] = ()
    """The stored stages that it reads, each as name and fingerprint with a hyphen between."""
    opaque: tuple[str, ...] = ()
    """What distinguishes unresolved inputs with equal components, within this session."""
    captured: Mapping[str, str] = field(default_factory=dict)
    """Digest of each value that functions of the plan captured, by name."""
    code: tuple[str, ...] = ()
    """Digests of the code of these functions, without values."""
    inputs: tuple[ListedFiles, ...] = field(default=(), compare=False, repr=False)
    """The files that are read, to be asked again behind the last of their rows."""


@deep_plans()
def identify_plan(df: DataFrame, known: KnownRdds) -> PlanIdentity:
    """Return the identity of a classic, non-streaming DataFrame. Runs no job.

    Args:
        df: the DataFrame; the settings of its own session are part of the identity.
        known: the RDDs of stored stages and of queries.

    Not guaranteed: equal fingerprints in two Spark versions (the version is part of them). A file
    whose content changes, but not its path, length, modification time and tag, is not noticed.
    """
    jvm = Jvm(df.sparkSession.sparkContext)
    walk = CatalystWalk(jvm)
    leaves = PlanLeaves(walk, known)
    functions = PlanFunctions(walk)
    execution = jvm.fresh_execution(df)
    plan = execution.withCachedData()
    leaves.conditions.learn(plan)
    walk.visit(jvm.seen(plan))
    settings = settings_digest(jvm, df)
    components = {
        **leaves.components(),
        "settings": settings.of(functions=bool(functions.digests)),
        "schema": hex_digest([cast("Any", df)._jdf.schema().json()]),  # noqa: SLF001
    }
    identity = with_cached(jvm, leaves.cached, settings, walked(walk, functions, components))
    return replace(
        identity,
        reads=tuple(leaves.stages_below),
        inputs=tuple(leaves.inputs),
        unresolved=(*identity.unresolved, *moving_values(jvm, plan, walk.classes)),
    )


def identify_rdd(rdd: RDD[Any]) -> PlanIdentity:
    """Return the identity of an RDD from the chain of RDDs below it. Runs no job."""
    walk = CatalystWalk(Jvm(rdd.context))
    functions = PlanFunctions(walk)
    chain = RddChain(walk)
    chain.visit(cast("Any", rdd)._jrdd.rdd(), "an RDD's input")  # noqa: SLF001
    settings = hex_digest([rdd.context.version, zone_of_process()])
    return walked(walk, functions, {"rows": hex_digest(chain.rows), "settings": settings})


def with_cached(
    jvm: Jvm, cached: Sequence[Any], settings: Settings, identity: PlanIdentity
) -> PlanIdentity:
    """Return the identity of a plan that reads cached rows, given the identity of its nodes.

    Rows were cached under the settings of that time, and current_timestamp() has the value of that
    time. `version=` can vouch for both; the settings distinguish two caches all the same.

    Args:
        cached: the builders of the cached rows.
        settings: the settings of now.
    """
    reasons: list[str] = []
    then = [cached_settings(jvm, builder) for builder in cached]
    if any(of_one != settings for of_one in then):
        reasons.append(
            "a DataFrame that was cached under other settings cannot be recognised in another run: "
            "change settings before the cache, or give version="
        )
        identity = replace(
            identity,
            components={
                **identity.components,
                "cached": hex_digest(sorted({str(of_one) for of_one in then})),
            },
        )
    for builder in cached:
        reasons += moving_values(jvm, builder.logicalPlan(), set())
    return replace(identity, unresolved=tuple(dict.fromkeys((*identity.unresolved, *reasons))))


def walked(
    walk: CatalystWalk, functions: PlanFunctions, components: dict[str, str]
) -> PlanIdentity:
    """Return the identity of what a walk has visited.

    Args:
        components: of all that is not the plan or its functions.
    """
    reasons = walk.unresolved
    return PlanIdentity(
        {
            **components,
            "plan": walk.digest(),
            "functions": hex_digest(functions.digests),
            **(micro_batch(walk.jvm.context) if reasons else {}),
        },
        tuple(dict.fromkeys(reasons)),
        functions=frozenset(functions.unresolved),
        opaque=tuple(walk.opaque),
        captured=functions.captured,
        code=tuple(functions.code),
    )
