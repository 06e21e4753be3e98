"""Engines other than Spark's JVM, as entries of `systems.py`: what each is, needs and refuses."""

from durable_shuffle.bench.peers.peer import Peer, all_faults_but

ENGINE_DRIVER = "durable_shuffle.bench.peers.engine_driver"

_RIVALS = "pip install 'durable-shuffle[rivals]'"
_NO_SPARK = {
    "W5": "not written for it: no ledger",
    "F11": "only Spark's executors are decommissioned by a signal",
}
_WITH_WORKERS = {
    **all_faults_but(
        ("F1", "F2", "F4"), "it has no commit or storage of this project that this fault is about"
    ),
    **_NO_SPARK,
}
_ONE_PROCESS = {
    **all_faults_but(("F4",), "it is one process without storage of its own: only F4 can hit it"),
    **_NO_SPARK,
}


def _engine(
    name: str,
    title: str,
    colour: str,
    packages: tuple[str, ...],
    refuses: dict[str, str],
    *,
    install: str = _RIVALS,
    newest: dict[str, tuple[int, ...]] | None = None,
) -> Peer:
    return Peer(
        name=name,
        title=title,
        colour=colour,
        driver=ENGINE_DRIVER,
        session=name,
        worker=None,
        refuses=refuses,
        packages=packages,
        install=install,
        too_new=newest or {},
        # not <NAME>_PYTHON: some of them take all variables of such a prefix for their settings
        python_variable=f"PYTHON_FOR_{name.upper().replace('-', '_')}",
    )


ENGINES = (
    _engine(
        "dask",
        "Dask's peer-to-peer shuffle, two worker processes",
        "#d1477f",
        ("dask", "distributed"),
        _WITH_WORKERS,
        install="pip install 'durable-shuffle[bench]'",
    ),
    _engine(
        "ray",
        "Ray Data, two CPUs of one node: map_batches, then groupby with map_groups",
        "#0284c7",
        ("ray",),
        _WITH_WORKERS,
    ),
    _engine(
        "smallpond",
        "smallpond on two CPUs of a Ray node: map_batches, then repartition by a column",
        "#be123c",
        ("smallpond", "ray", "duckdb", "pyarrow"),
        _WITH_WORKERS,
        install="pip install smallpond 'duckdb<1.4' into a Python of its own, as it "
        "wants an older pyarrow than this project",
        newest={"duckdb": (1, 4)},
    ),
    _engine(
        "daft",
        "Daft's native runner, one process: a function that gives lists, explode, groupby with "
        "map_groups",
        "#a21caf",
        ("daft",),
        _ONE_PROCESS,
    ),
    _engine(
        "daft-ray",
        "Daft on two CPUs of a Ray node, as on its native runner",
        "#e11d48",
        ("daft", "ray"),
        _WITH_WORKERS,
    ),
    _engine(
        "sail",
        "Sail in local mode, one process: mapInArrow, repartition, mapInArrow over Spark Connect",
        "#15803d",
        ("pysail", "pyspark"),
        _ONE_PROCESS,
        newest={"pyspark": (4, 2)},
    ),
    _engine(
        "polars",
        "Polars, one process: Python sources, then group_by with map_groups",
        "#64748b",
        ("polars",),
        _ONE_PROCESS,
    ),
)
