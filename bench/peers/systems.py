"""Every system that is measured, in the order of tables and pages. Importing it needs no system.

How to add a system:

1. Add an entry to `PEERS` below. `Peer` says what each field means. The command line, its help, the
   plan, tables, pages and pictures take names, colours, refusals and versions from here.
2. If it runs on Spark: give the entry a `hand_over` (see `hand_overs.py`) or `settings` (see
   `celeborn.py`), or both. `spark_driver.py` does the rest.
   If it does not: add it to `other_engines.py`, and a module `engines/on_<name>.py` that starts it
   and runs a `Job` (see `engines/workload.py`). `engine_driver.py` does the rest.
   A driver of your own is run as `python -m <driver> WORK EVENTS STEPS_JSON` and appends JSON lines
   to EVENTS: `ready` once, then per step `run`, `progress` and `done`. Its tasks make their rows
   with `batches_of`, reduce them with `reduced`, and say so through a `TaskLog`: counts, moments of
   faults and timelines come from these lines, for every system alike. The rows go to
   `result_file`.
3. What it cannot do goes into `refuses`, with the reason. What a user must install or start goes
   into `packages` or `missing`.
"""

from durable_shuffle.bench.peers.celeborn import CELEBORN, celeborn_settings, celeborn_twice
from durable_shuffle.bench.peers.hand_overs import (
    as_buckets,
    as_parquet,
    checkpointed,
    old_checkpoints,
    shuffled,
    unfinished_files,
)
from durable_shuffle.bench.peers.other_engines import ENGINES
from durable_shuffle.bench.peers.peer import ON_STORAGE, Environment, Peer
from durable_shuffle.bench.peers.spark_kept import (
    SERVICE_HOSTS,
    fallback_storage,
    shuffle_service,
)
from durable_shuffle.bench.peers.uniffle import UNIFFLE, uniffle_settings

_ALONE = {"F8": "two drivers share nothing that a late writer could touch"}

DURABLE = "durable"
"""This project; the one that all others are compared with."""

_EVERY = (
    Peer(
        name=DURABLE,
        title="this project: stages on storage",
        colour="#0d9488",
    ),
    Peer(
        name="native",
        title="Spark's own shuffle",
        colour="#d97706",
        refuses={**ON_STORAGE, **_ALONE},
        hand_over=shuffled,
    ),
    Peer(
        name="checkpoint",
        title="Spark's shuffle, then a reliable checkpoint()",
        colour="#7c5cff",
        refuses={**ON_STORAGE, **_ALONE},
        hand_over=checkpointed,
        stale=old_checkpoints,
    ),
    Peer(
        name="parquet",
        title="Spark's shuffle, then a Parquet table that a second run reads if it is complete",
        colour="#2f7ed8",
        refuses={**ON_STORAGE, **_ALONE},
        hand_over=as_parquet,
        stale=unfinished_files,
    ),
    Peer(
        name="buckets",
        title="Spark's bucketBy table, no shuffle; a second run reads it if it is complete",
        colour="#0f8fb3",
        refuses={**ON_STORAGE, **_ALONE},
        hand_over=as_buckets,
        stale=unfinished_files,
    ),
    Peer(
        name="ess",
        title="Spark's own shuffle with its external shuffle service, on a standalone cluster",
        colour="#b45309",
        session="ess",
        refuses={
            **ON_STORAGE,
            **_ALONE,
            "F10": "a twin needs a second host, and a second service needs a port of its own",
        },
        settings=shuffle_service,
        hosts=SERVICE_HOSTS,
        hand_over=shuffled,
    ),
    Peer(
        name="fallback",
        title="Spark's own shuffle, which moves blocks to other executors or to a fallback storage "
        "when an executor is decommissioned",
        colour="#a16207",
        session="fallback",
        refuses={**ON_STORAGE, **_ALONE},
        settings=fallback_storage,
        hand_over=shuffled,
    ),
    Peer(
        name="celeborn",
        title="Spark with Celeborn, one copy of each block",
        colour="#6d8f1f",
        session="celeborn",
        refuses={**ON_STORAGE, **_ALONE},
        missing=CELEBORN.missing,
        version=CELEBORN.version,
        settings=celeborn_settings,
        hand_over=shuffled,
        taken_in=CELEBORN.taken_in,
    ),
    Peer(
        name="celeborn-2",
        title="Spark with Celeborn, two copies of each block",
        colour="#4d7c0f",
        session="celeborn-2",
        refuses={**ON_STORAGE, **_ALONE},
        missing=CELEBORN.missing,
        version=CELEBORN.version,
        settings=celeborn_twice,
        hand_over=shuffled,
        taken_in=CELEBORN.taken_in,
    ),
    Peer(
        name="uniffle",
        title="Spark with Uniffle",
        colour="#8b5e3c",
        session="uniffle",
        refuses={**ON_STORAGE, **_ALONE},
        missing=UNIFFLE.missing,
        version=UNIFFLE.version,
        settings=uniffle_settings,
        hand_over=shuffled,
        taken_in=UNIFFLE.taken_in,
    ),
    *ENGINES,
)

PEERS = {peer.name: peer for peer in _EVERY}
OTHERS = tuple(name for name in PEERS if name != DURABLE)


def absent_peers(environment: Environment) -> dict[str, str]:
    """Return what is missing of each peer that cannot be measured on this machine."""
    told = {name: peer.absent(environment) for name, peer in PEERS.items()}
    return {name: why for name, why in told.items() if why is not None}
