"""What the storage protocol costs beside bare calls of the same driver, on any backend.

Strategy: every operation is timed alone, a block of it with ours, then with the bare driver, block
by block in turn. Ours writes durably and creates exclusively, which the bare calls do not: the
ratio is the price of that. Objects live in a folder of their own, deleted at the end.
"""

import random
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fsspec.core import url_to_fs
from rich.console import Console
from rich.table import Table

from durable_shuffle.bench.machine import machine_text
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.base.clock import Clock, RandomIds, SystemClock
from durable_shuffle.shuffle.storage.contract import Created
from durable_shuffle.shuffle.storage.open import open_storage

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """What a user may choose."""

    url: str
    """As the user gave it; never shown: what is shown is the storage's description."""
    storage_options: Mapping[str, object]
    scale: float = 1.0
    """Of the large object: 64 MiB."""
    seed: int = 0
    rounds: int = 5
    calls: int = 20
    """Small operations per round."""


@dataclass(frozen=True, slots=True)
class OperationFigures:
    """One operation, ours and bare. Milliseconds per call, of all rounds."""

    operation: str
    calls: int
    median: float
    slowest: float
    bare_median: float | None
    bare_slowest: float | None
    ratio: float | None
    """Median over rounds of ours by bare, medians within a round."""
    mib_per_second: float | None
    """Of large objects."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


Call = Callable[[int], object]


def run_storage_bench(
    options: StorageOptions, console: Console, command: str, clock: Clock | None = None
) -> dict[str, Any]:
    """Time the operations, print a table, and return the document.

    Raises:
        InvalidInputError: the URL, or a backend that cannot create exclusively.
        UnavailableError: the storage does not answer.
    """
    clock = clock or SystemClock()
    start, date = clock.monotonic(), clock.wall()
    folder = f"bench-{RandomIds().new_id()}"
    url = f"{options.url.rstrip('/')}/{folder}"
    storage = open_storage(url, dict(options.storage_options))
    filesystem, root = url_to_fs(url, **options.storage_options)
    filesystem.makedirs(f"{root}/bare/put", exist_ok=True)
    small = random.Random(options.seed).randbytes(1024)
    large = random.Random(options.seed + 1).randbytes(max(1, int(64 * _MIB * options.scale)))
    name = "{:06d}".format

    def refuse(i: int) -> None:
        if isinstance(storage.put_if_absent(f"ours/create/{name(i)}", small), Created):
            raise CorruptDataError(f"an object was created twice on {storage.description}")

    def check(found: object, wanted: bytes) -> None:
        if bytes(found) != wanted:  # type: ignore[call-overload]
            raise CorruptDataError(f"other bytes came back from {storage.description}")

    cases: list[tuple[str, int, Call, Call | None]] = [
        (
            "create 1 KiB", len(small),
            lambda i: storage.put_if_absent(f"ours/create/{name(i)}", small),
            lambda i: filesystem.pipe_file(f"{root}/bare/create-{name(i)}", small),
        ),
        ("create refused", 0, refuse, None),
        (
            "put 1 KiB", len(small),
            lambda i: storage.put(f"ours/put/{name(i)}", [small]),
            lambda i: filesystem.pipe_file(f"{root}/bare/put/{name(i)}", small),
        ),
        (
            "get 1 KiB", len(small),
            lambda i: check(storage.read(f"ours/put/{name(i)}"), small),
            lambda i: check(filesystem.cat_file(f"{root}/bare/put/{name(i)}"), small),
        ),
        (
            "put large", len(large),
            lambda i: storage.put(f"ours/large/{name(i)}", [large]),
            lambda i: filesystem.pipe_file(f"{root}/bare/large-{name(i)}", large),
        ),
        (
            "get large", len(large),
            lambda i: check(storage.read_range(f"ours/large/{name(i)}", 0, len(large)), large),
            lambda i: check(filesystem.cat_file(f"{root}/bare/large-{name(i)}"), large),
        ),
        (
            "list", 0,
            lambda _: list(storage.list("ours/put/")),
            lambda _: (filesystem.invalidate_cache(), filesystem.find(f"{root}/bare/put")),
        ),
        (
            "delete", 0,
            lambda i: storage.delete([f"ours/put/{name(i)}"]),
            lambda i: filesystem.rm_file(f"{root}/bare/put/{name(i)}"),
        ),
    ]  # fmt: skip
    ours: dict[str, list[list[float]]] = {case[0]: [] for case in cases}
    bare: dict[str, list[list[float]]] = {case[0]: [] for case in cases}
    try:
        for turn in range(options.rounds):
            for operation, size, call, bare_call in cases:
                count = 1 if size > _MIB else options.calls
                numbers = range(turn * options.calls, turn * options.calls + count)
                pair = [(ours, call)] + ([(bare, bare_call)] if bare_call else [])
                for timed, one in pair if turn % 2 == 0 else reversed(pair):
                    timed[operation].append([_milliseconds(clock, one, i) for i in numbers])
    finally:
        storage.delete([info.key for info in storage.list("ours/")])
        filesystem.rm(root, recursive=True)
    sizes = {operation: size for operation, size, _, _ in cases}
    lines = [_figures(name, sizes[name], ours[name], bare[name]) for name in ours]
    console.print(_table(lines))
    return {
        "kind": "storage",
        "command": command,
        "date_wall_seconds": date,
        "machine": machine_text(),
        "storage": storage.description.removesuffix(f"/{folder}"),
        "seed": options.seed,
        "rounds": options.rounds,
        "large_bytes": len(large),
        "seconds": clock.monotonic() - start,
        "passed": True,
        "failures": [],
        "lines": [line.to_dict() for line in lines],
    }


def _milliseconds(clock: Clock, call: Call, number: int) -> float:
    start = clock.monotonic()
    call(number)
    return 1000 * (clock.monotonic() - start)


def _figures(
    operation: str, size: int, ours: list[list[float]], bare: list[list[float]]
) -> OperationFigures:
    flat = [ms for block in ours for ms in block]
    flat_bare = [ms for block in bare for ms in block]
    pairs = zip(ours, bare, strict=False)
    median = statistics.median(flat)
    return OperationFigures(
        operation=operation,
        calls=len(flat),
        median=median,
        slowest=max(flat),
        bare_median=statistics.median(flat_bare) if bare else None,
        bare_slowest=max(flat_bare) if bare else None,
        ratio=statistics.median(statistics.median(a) / statistics.median(b) for a, b in pairs)
        if bare
        else None,
        mib_per_second=size / _MIB / (median / 1000) if size > _MIB else None,
    )


def _table(lines: list[OperationFigures]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("operation", "ms", "slowest", "bare ms", "ratio", "MiB/s"):
        table.add_column(name, no_wrap=True, justify="left" if name == "operation" else "right")
    for line in lines:
        table.add_row(
            line.operation,
            f"{line.median:.2f}",
            f"{line.slowest:.2f}",
            "" if line.bare_median is None else f"{line.bare_median:.2f}",
            "" if line.ratio is None else f"{line.ratio:.2f}",
            "" if line.mib_per_second is None else f"{line.mib_per_second:,.0f}",
        )
    return table
