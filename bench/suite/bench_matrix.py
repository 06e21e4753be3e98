"""The commands `durable-shuffle bench recovery|throughput|storage` as users start them.

Each runs as a process of its own and writes its part of docs/benchmarks.md: the table, the command,
the machine, the day, and pictures below docs/pictures. Their own exit status is the bar: wrong
rows, a fault that did not fire, or committed work that ran again.
"""

import json
import os
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from document import PICTURES, table, write_block

from durable_shuffle.jobs.text import size

pytestmark = [pytest.mark.timeout(0), pytest.mark.spark]

FULL = os.environ.get("BENCH_FULL") == "1"
RECOVERY = (
    "--workload W1,W2,W4,W5 --fault F1,F2,F3,F4,F5,F6,F7,F8,F9,F10,F11 "
    "--against native,ess,fallback,buckets,checkpoint,parquet,dask --scale 0.25 --seed 1 --rounds 3"
    if FULL
    else "--workload W4,W5 --fault F1,F2,F3,F4,F11 "
    "--against native,ess,fallback,buckets,celeborn,celeborn-2,uniffle --scale 0.25 --seed 1"
)
THROUGHPUT = "--workload W1,W2 --against native,checkpoint,parquet --scale 0.1 --rounds 3"


@pytest.fixture
def only_when_measuring(measuring: bool) -> None:
    """Plain runs of the same commands are in tests/spark/test_bench_recovery.py."""
    if not measuring:
        pytest.skip("clusters and kills: only when measuring")


def command(benchmark: Any, tmp_path: Path, kind: str, arguments: str) -> Any:
    """Run a command, hold it to its exit status, and return its document."""
    file = tmp_path / f"{kind}.json"
    line = [sys.executable, "-m", "durable_shuffle.jobs.cli", "bench", kind]
    line += [*shlex.split(arguments), "--json", str(file)]

    def run() -> int:
        return subprocess.run(line, check=False).returncode

    status = benchmark.pedantic(run, rounds=1)
    document = json.loads(file.read_text())
    benchmark.extra_info["document"] = {k: document[k] for k in ("seconds", "failures")}
    assert status == 0, document["failures"]
    return document


def caption(document: dict[str, Any], kind: str, arguments: str) -> str:
    """Return what made the figures."""
    day = datetime.fromtimestamp(document["date_wall_seconds"], UTC)
    rounds = f", {document['rounds']} rounds" if document["rounds"] > 1 else ", one round"
    return (
        f"`durable-shuffle bench {kind} {arguments}`, {day:%Y-%m-%d}{rounds}, "
        f"{document['seconds']:.0f} s in all, on {document['machine']}."
    )


def test_recovery(benchmark: Any, only_when_measuring: None, tmp_path: Path) -> None:
    """Two workloads under four faults beside Spark's shuffle; all of them with BENCH_FULL=1."""
    from durable_shuffle.bench.pages.pictures import recovery_pictures

    PICTURES.mkdir(exist_ok=True)
    document = command(benchmark, tmp_path, "recovery", RECOVERY)
    for old in PICTURES.glob("recovery-*.png"):
        old.unlink()
    made = recovery_pictures(document, PICTURES)
    benchmark.extra_info["ratios"] = {
        f"{s['workload']} {s['fault']} {s['peer']}": s["ratio"]
        for s in document["summary"]
        if s["ratio"] is not None
    }
    head = (
        "workload", "fault", "peer", "seconds", "lost", "by durable", "maps again", "rewritten",
        "reread", "records twice", "missing",
    )  # fmt: skip
    rows = [
        (
            s["workload"], s["fault"], s["peer"], f"{s['seconds']:.1f}",
            "" if s["seconds_lost"] is None else f"{s['seconds_lost']:+.1f}",
            "" if s["ratio"] is None else f"{s['ratio']:.2f}",
            "" if s["fault"] == "F0" else f"{s['maps_again']:g} of {s['maps']}",
            size(int(s["bytes_rewritten"])) or "", size(int(s["bytes_reread"])) or "",
            f"{s['records_twice']:,}", f"{s['records_missing']:,}",
        )
        for s in document["summary"]
    ]  # fmt: skip
    pictures = "\n\n".join(f"![{p.stem}](pictures/{p.name})" for p in made)
    schedule = "\n".join(document["schedule"])
    versions = "; ".join(f"{p['name']}: {p['versions']}" for p in document["peers"])
    gone = {r["cell"].split()[2].rstrip(","): r["why"] for r in document["refused"]}
    measured = {s["peer"] for s in document["summary"]}
    told = "".join(f"\n\nNot run: {n}: {why}." for n, why in gone.items() if n not in measured)
    write_block(
        "recovery",
        f"{caption(document, 'recovery', RECOVERY)} `--html FILE` makes a page of it. "
        f"Versions: {versions}.{told}\n\n"
        f"{table(head, rows)}\n\n{pictures}\n\n```text\n{schedule}\n```\n",
    )


def test_throughput(benchmark: Any, only_when_measuring: None, tmp_path: Path) -> None:
    """Two cheap workloads without a fault, beside three ways of Spark's own."""
    from durable_shuffle.bench.pages.pictures import throughput_picture

    PICTURES.mkdir(exist_ok=True)
    document = command(benchmark, tmp_path, "throughput", THROUGHPUT)
    picture = throughput_picture(document, PICTURES / "throughput.png")
    benchmark.extra_info["ratios"] = {
        f"{x['workload']} {x['peer']}": x["ratio"] for x in document["lines"] if x["ratio"]
    }
    head = ("workload", "peer", "seconds", "min", "max", "by durable", "rows/s", "MiB/s")
    rows = [
        (
            x["workload"], x["peer"], *(f"{x[n]:.1f}" for n in ("seconds", "least", "most")),
            "" if x["ratio"] is None else f"{x['ratio']:.2f}",
            f"{x['rows_per_second']:,.0f}", f"{x['mib_per_second']:.0f}",
        )
        for x in document["lines"]
    ]  # fmt: skip
    write_block(
        "throughput",
        f"{caption(document, 'throughput', THROUGHPUT)}\n\n{table(head, rows)}\n\n"
        f"![throughput](pictures/{picture.name})\n",
    )


def test_storage(benchmark: Any, only_when_measuring: None, tmp_path: Path) -> None:
    """The storage protocol on a local folder, beside the bare driver."""
    document = command(benchmark, tmp_path, "storage", "--rounds 5")
    head = ("operation", "ms", "slowest", "bare ms", "ratio", "MiB/s")
    rows = [
        (
            x["operation"], f"{x['median']:.2f}", f"{x['slowest']:.2f}",
            "" if x["bare_median"] is None else f"{x['bare_median']:.2f}",
            "" if x["ratio"] is None else f"{x['ratio']:.2f}",
            "" if x["mib_per_second"] is None else f"{x['mib_per_second']:,.0f}",
        )
        for x in document["lines"]
    ]  # fmt: skip
    write_block(
        "storage-calls", f"{caption(document, 'storage', '--rounds 5')}\n\n{table(head, rows)}\n"
    )
