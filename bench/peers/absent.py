"""Peers that cannot be measured on this machine."""

import importlib.util
import os

from durable_shuffle.bench.peers.celeborn import celeborn_missing


def absent_peers() -> dict[str, str]:
    """Return what is missing of each peer that is not there."""
    found = {}
    if importlib.util.find_spec("distributed") is None or importlib.util.find_spec("dask") is None:
        found["dask"] = "not installed: pip install 'durable-shuffle[bench]'"
    missing = celeborn_missing(os.environ)
    if missing is not None:
        found["celeborn"] = missing
    return found
