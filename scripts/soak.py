"""Run the long test families one by one, resume where a run stopped, write docs/internals/soak.md.

A family that passed at the current commit is not run again (`--fresh` forgets that). The page keeps
the last result of every family that still exists, with the commit it ran at. State is kept in
.soak/state.json; the seed of each run is printed and kept, so that a failure replays with
DURABLE_SHUFFLE_SEED.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".soak" / "state.json"
RESULT = ROOT / "docs" / "internals" / "soak.md"
SEED_LINE = re.compile(r"seed[:=]\s*(\d+)", re.IGNORECASE)


def families() -> list[str]:
    """Return the node ids of all soak tests.

    Cases that share a Spark session are one family, unless they are named as parts of a long one.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "soak"]
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    nodes = [line for line in out.splitlines() if "::" in line]
    return list(
        dict.fromkeys(
            n.split("[")[0] if n.startswith("tests/spark/") and "[part" not in n else n
            for n in nodes
        )
    )


def commit() -> str:
    """Return the checked out commit."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout[:12]


def run(node: str, at: str) -> dict[str, object]:
    """Run one family and return what came of it."""
    env = {**os.environ, "HYPOTHESIS_PROFILE": "soak"}
    quiet = ["--timeout=0", "-o", "faulthandler_timeout=0"]  # a dump of a long run can end it
    command = [sys.executable, "-m", "pytest", "-m", "soak", *quiet, node]
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    seed = SEED_LINE.search(done.stdout)
    if done.returncode:
        sys.stdout.write(done.stdout[-8000:])
    return {
        "passed": done.returncode == 0,
        "commit": at,
        "seconds": round(time.monotonic() - start, 1),
        "seed": seed[1] if seed else "",
        "day": datetime.now(UTC).date().isoformat(),
    }


def written_rows() -> dict[str, str]:
    """Return family -> its row of the page, which may come from another checkout."""
    lines = RESULT.read_text().splitlines() if RESULT.exists() else []
    return {line.split("`")[1]: line for line in lines if line.startswith("| `")}


def write_result(results: dict[str, dict[str, object]], existing: list[str]) -> None:
    """Write the result page; a family without a result keeps its row, or is listed as not run."""
    kept = written_rows()
    lines = [
        "# Soak results",
        "",
        "Written by `make soak`. One row per long test family: its last run. Seconds are those of",
        "a shared machine with 2 cores.",
        "",
        "| family | result | seconds | seed | commit | day |",
        "|---|---|---|---|---|---|",
    ]
    for node in sorted(existing):
        if node not in results:
            lines.append(kept.get(node, f"| `{node}` | not run | | | | |"))
            continue
        r = results[node]
        verdict = "passed" if r["passed"] else "FAILED"
        lines.append(
            f"| `{node}` | {verdict} | {r['seconds']} | {r['seed']} "
            f"| `{r['commit']}` | {r['day']} |"
        )
    RESULT.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Run what is missing; exit status 1 if a family failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("-k", default="", help="only families whose id contains this")
    options = parser.parse_args()
    at = commit()
    results = json.loads(STATE.read_text()) if STATE.exists() and not options.fresh else {}
    STATE.parent.mkdir(exist_ok=True)
    existing = families()
    results = {node: r for node, r in results.items() if node in existing}
    wanted = [node for node in existing if options.k in node]
    for i, node in enumerate(wanted, 1):
        if results.get(node, {}).get("passed") and results[node]["commit"] == at:
            continue
        sys.stdout.write(f"[{i}/{len(wanted)}] {node}\n")
        sys.stdout.flush()
        results[node] = run(node, at)
        STATE.write_text(json.dumps(results, indent=1))
        write_result(results, existing)
    return int(any(not r["passed"] for r in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
