"""The registry of systems that are measured: every entry is whole, and nothing else is needed."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_page import served

from durable_shuffle.bench.pages.bars import PEER_COLOURS
from durable_shuffle.bench.peers.celeborn import CELEBORN, celeborn_settings, celeborn_twice
from durable_shuffle.bench.peers.peer import SPARK_DRIVER, Peer
from durable_shuffle.bench.peers.service import counted
from durable_shuffle.bench.peers.systems import DURABLE, OTHERS, PEERS, absent_peers
from durable_shuffle.bench.peers.uniffle import UNIFFLE
from durable_shuffle.bench.workloads.cases import objection, plan_cells
from durable_shuffle.bench.workloads.faults import FAULTS, WORKLOADS


@pytest.mark.parametrize("peer", PEERS.values(), ids=list(PEERS))
def test_every_entry_is_whole(peer: Peer) -> None:
    """It has words, a colour of its own, a driver that exists, and refuses what there is."""
    assert PEERS[peer.name] is peer
    assert peer.title
    assert not peer.title.endswith(".")
    assert re.fullmatch("#[0-9a-f]{6}", peer.colour)
    assert list(PEER_COLOURS.values()).count(peer.colour) == 1
    assert importlib.util.find_spec(peer.driver) is not None
    assert set(peer.refuses) <= {*FAULTS, *WORKLOADS} - {"F0"}
    assert all(len(why) > 20 for why in peer.refuses.values())
    on_spark = peer.driver == SPARK_DRIVER and peer.name != DURABLE
    assert (peer.hand_over is not None) == on_spark
    for other in PEERS.values():
        if other.session == peer.session:
            same = (peer.driver, peer.settings, peer.hosts, peer.worker)
            assert (other.driver, other.settings, other.hosts, other.worker) == same


def test_what_an_entry_refuses_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more entry in the registry is one more system, with its own refusals."""
    added = replace(PEERS["native"], name="new", refuses={"F2": "it has no executors to kill"})
    monkeypatch.setitem(PEERS, "new", added)
    assert objection("W4", "F2", "new") == "it has no executors to kill"
    assert objection("W4", "F1", "new") is None
    cells, refused = plan_cells(["W4"], ["F1", "F2"], ["new"])
    assert [c.name for c in cells if c.peer == "new"] == ["W4 F0 new", "W4 F1 new"]
    assert [(c.name, why) for c, why in refused] == [("W4 F2 new", "it has no executors to kill")]


def test_a_package_that_is_missing_is_named() -> None:
    """Also what a peer needs besides packages, and versions of what is there."""
    gone = replace(PEERS["native"], packages=("pyspark", "no-such-system"))
    assert gone.absent({}) == (
        "not installed: no-such-system: pip install 'durable-shuffle[bench]'"
    )
    assert PEERS["native"].absent({}) is None
    assert re.fullmatch(r"pyspark \d+\.\d+\.\d+", PEERS["native"].versions({}))
    assert "CELEBORN_MASTER" in absent_peers({})["celeborn"]


def test_a_peer_that_is_absent_is_left_out_with_the_reason() -> None:
    """Others are planned all the same."""
    cells, refused = plan_cells(["W4"], ["F2"], OTHERS, absent_peers({}))
    assert {"durable", "native"} <= {c.peer for c in cells}
    assert "celeborn" not in {c.peer for c in cells}
    assert all("CELEBORN_MASTER" in why for c, why in refused if c.peer == "celeborn")


def test_the_registry_needs_no_system() -> None:
    """The command line imports it: neither Spark nor Dask may come along."""
    code = (
        "import sys; import durable_shuffle.bench.peers.systems; "
        "print([n for n in ('pyspark', 'dask', 'pyarrow', 'numpy') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


PAGE = """\
# TYPE metrics_LocalFlushSize_Count counter
metrics_LocalFlushSize_Count{instance="127.0.0.1:9086",role="Worker"} 1200 1795467147291
metrics_LocalFlushCount_Count{instance="127.0.0.1:9086",role="Worker"} 7 1795467147291
metrics_S3FlushSize_Count{role="Worker"} 3 1795467147291
# TYPE total_received_data counter
total_received_data{tags="GRPC,ss_v5",} 5.0E2
total_received_data{tags="x",} 1.5
"""


def test_bytes_are_counted_as_servers_say_them() -> None:
    """As pages of Celeborn 0.7 and of Uniffle look; a page without the counter says nothing."""
    assert counted(PAGE, CELEBORN.counters) == 1203
    assert counted(PAGE, UNIFFLE.counters) == 501.5
    assert counted("metrics_Other 1\n", CELEBORN.counters) is None


def test_a_service_says_what_is_missing(tmp_path: Path) -> None:
    """Variables, the jar, the server, its counters: each by name; then nothing is missing."""
    jar = tmp_path / "client-1.2.jar"
    with served(PAGE) as address:
        environment = {
            "CELEBORN_MASTER": address,
            "CELEBORN_CLIENT_JAR": str(jar),
            "CELEBORN_METRICS": f"http://{address}/metrics, http://{address}/metrics",
        }
        for name in environment:
            less = {k: v for k, v in environment.items() if k != name}
            assert name in str(CELEBORN.missing(less))
        assert "not there" in str(CELEBORN.missing(environment))
        jar.touch()
        assert CELEBORN.missing(environment) is None
        assert CELEBORN.taken_in(environment) == 2 * 1203
        assert CELEBORN.version(environment) == "client-1.2.jar"
        wrong = {**environment, "UNIFFLE_COORDINATOR": address, "UNIFFLE_CLIENT_JAR": str(jar)}
        assert "UNIFFLE_METRICS" in str(UNIFFLE.missing(wrong))
    assert "nothing listens" in str(CELEBORN.missing(environment))
    with served("nothing") as address:
        environment["CELEBORN_MASTER"] = address
        environment["CELEBORN_METRICS"] = f"http://{address}/metrics"
        assert "counters" in str(CELEBORN.missing(environment))


def test_a_service_may_have_another_shuffle_manager() -> None:
    """For a Spark version that its own class does not fit; two copies are a setting."""
    environment = {"CELEBORN_CLIENT_JAR": "a.jar,b.jar", "CELEBORN_MASTER": "h:1"}
    usual = celeborn_settings(environment, Path())
    assert usual["spark.shuffle.manager"].endswith("celeborn.SparkShuffleManager")
    assert usual["spark.jars"] == "a.jar,b.jar"
    other = celeborn_twice({**environment, "CELEBORN_SHUFFLE_MANAGER": "my.Manager"}, Path())
    assert other["spark.shuffle.manager"] == "my.Manager"
    assert other["spark.celeborn.client.push.replicate.enabled"] == "true"
