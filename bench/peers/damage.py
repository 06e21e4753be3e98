"""Damage to stored bytes, as disks and half-written files do it. For benchmarks only."""

import random
from pathlib import Path

from durable_shuffle.serialization.errors import NotFoundError


def flip_bit(job_folder: Path, draw: int) -> str:
    """Flip one bit in the middle half of a segment of a job; return which.

    Raises:
        NotFoundError: there is no segment.
    """
    segments = sorted(p for p in job_folder.glob("*/segments/*/*.seg") if p.stat().st_size)
    if not segments:
        raise NotFoundError(f"no segment to damage below {job_folder}")
    chance = random.Random(draw)
    path = chance.choice(segments)
    size = path.stat().st_size
    at = chance.randrange(size // 4, max(size // 4 + 1, 3 * size // 4))
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1 << chance.randrange(8)]))
    return f"{path.name} byte {at}"


def truncate_uncommitted(job_folder: Path, commit_key: str, draw: int) -> str | None:
    """Cut the segment of the attempt that died before its COMMIT; None if there is none.

    Args:
        commit_key: key of the COMMIT that was not written: names the stage and the producer.
    """
    stage, _, rest = commit_key.partition("/producers/")
    producer = rest.partition("/")[0]
    folder = job_folder.parent / stage / "segments"
    found = sorted(folder.glob(f"*/{producer}-*.seg"), key=lambda p: p.stat().st_mtime)
    if not found:
        return None
    size = found[0].stat().st_size
    left = random.Random(draw).randrange(max(1, size))
    found[0].chmod(0o644)
    with found[0].open("r+b") as file:
        file.truncate(left)
    return f"{found[0].name} cut from {size} to {left} bytes"
