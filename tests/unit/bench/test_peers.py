"""The registry of systems that are measured: every entry is whole, and nothing else is needed."""

import importlib.util
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from durable_shuffle.bench.pages.bars import PEER_COLOURS
from durable_shuffle.bench.peers.peer import SPARK_DRIVER
from durable_shuffle.bench.peers.systems import DURABLE, OTHERS, PEERS, absent_peers
from durable_shuffle.bench.workloads.cases import objection, plan_cells
from durable_shuffle.bench.workloads.faults import FAULTS, WORKLOADS


@pytest.mark.parametrize("peer", PEERS.values(), ids=list(PEERS))
def test_every_entry_is_whole(peer: object) -> None:
    """It has words, a colour of its own, a driver that exists, and refuses what there is."""
    from durable_shuffle.bench.peers.peer import Peer

    assert isinstance(peer, Peer)
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
