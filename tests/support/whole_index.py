"""A small index, whole in memory, as the product writes it object by object."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from durable_shuffle.shuffle.log.records import Commit
from durable_shuffle.shuffle.seal.index import IndexWriter
from durable_shuffle.shuffle.seal.transpose import by_subpartition


def index_of_commits(commits: Sequence[Commit], partitions: int, *, key: str) -> dict[str, bytes]:
    """Return the objects of the index of the COMMITs of producers 0 to M-1, by key."""
    slices = by_subpartition(commits, partitions=partitions, producers=len(commits))
    attempts = bytes.fromhex("".join(commit.record_id for commit in commits))
    return index_objects(slices, attempts, partitions=partitions, key=key)


def index_objects(
    slices: Iterable[npt.NDArray[np.void]], attempts: bytes, *, partitions: int, key: str
) -> dict[str, bytes]:
    """Return the objects of the index of these slices by key: parts, then the index object.

    Args:
        attempts: 16 bytes per producer, as in SEAL.
    """
    objects: dict[str, bytes] = {}

    def put(name: str, parts: list[bytes]) -> None:
        objects[name] = b"".join(parts)

    writer = IndexWriter(put, key, partitions=partitions, producers=len(attempts) // 16)
    for entries in slices:
        writer.add(entries)
    writer.finish(attempts)
    return objects
