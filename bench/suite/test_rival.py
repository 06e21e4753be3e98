"""A shuffle service's driver answers beside others, and its figures are refused without proof."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, repeat
from pathlib import Path

import pytest
from prometheus_page import served
from rival import Rival, asked_peer

from durable_shuffle.bench.interleaved import interleave
from durable_shuffle.bench.peers.systems import PEERS
from durable_shuffle.bench.tpch.data import generate_all
from durable_shuffle.serialization.errors import InvalidInputError, UnavailableError
from durable_shuffle.shuffle.base.clock import SystemClock


def test_a_service_that_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    """With the reason; without BENCH_AGAINST nothing is asked for."""
    assert asked_peer({}) is None
    with pytest.raises(InvalidInputError, match="expected one of celeborn, "):
        asked_peer({"BENCH_AGAINST": "parquet"})
    with pytest.raises(InvalidInputError, match="CELEBORN_MASTER"):
        asked_peer({"BENCH_AGAINST": "celeborn"})
    jar = tmp_path / "client.jar"
    jar.touch()
    with served("metrics_LocalFlushSize_Count 0\n") as address:
        environment = {
            "BENCH_AGAINST": "celeborn",
            "CELEBORN_MASTER": address,
            "CELEBORN_CLIENT_JAR": str(jar),
            "CELEBORN_METRICS": f"http://{address}/",
        }
        assert asked_peer(environment) is PEERS["celeborn"]


@pytest.mark.soak
@pytest.mark.spark
def test_figures_need_rows_and_bytes(cache: Path, tmp_path: Path) -> None:
    """Its own seconds count; a service that took in nothing, or a failed query, has no figures."""
    page: Iterator[int] = count()  # what the service says it took in, one number per look
    peer = replace(PEERS["celeborn"], settings=lambda _, __: {}, taken_in=lambda _: next(page))
    data = generate_all(cache, 0.01).folder
    with Rival(peer, data, tmp_path, SystemClock()) as rival:
        told: list[float] = []

        def asked() -> float:
            told.append(rival.run("q12"))
            return told[-1]

        timings = interleave({"rival": asked}, rounds=1)
        assert timings.seconds["rival"] == told[1:]
        assert told[1] > 0
        page = repeat(7)
        with pytest.raises(UnavailableError, match="took in 0 bytes in q12"):
            rival.run("q12")
        page = count()
        with pytest.raises(UnavailableError, match="KeyError: 'q99'"):
            rival.run("q99")
