"""The first step of a task: it finds the worker's connections and leaves them as they were."""

import gc
import socket
import sys
from collections.abc import Iterator

import pytest

from durable_shuffle.jobs.deploy import worker_start
from durable_shuffle.jobs.deploy.worker_start import quicken_worker

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="quick acknowledgements are Linux's"
)


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    """Give this process's objects back to the cycle collector."""
    worker_start._freeze.cache_clear()
    yield
    gc.unfreeze()


def test_connections_to_this_host_are_quickened_and_stay_open() -> None:
    """The connection sends small packets at once from then on, and still carries bytes."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as there,
    ):
        here, _ = server.accept()
        with here:
            assert here.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
            quicken_worker()
            assert here.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
            there.sendall(b"still open")
            assert here.recv(10) == b"still open"


def test_other_descriptors_are_no_matter() -> None:
    """Unconnected and Unix sockets are passed by."""
    one, two = socket.socketpair()
    with one, two, socket.socket() as unconnected:
        quicken_worker()
        one.sendall(b"x")
        assert two.recv(1) == b"x"
        assert unconnected.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0


def test_what_is_imported_is_collected_no_more() -> None:
    """A collection after it looks at next to nothing."""
    quicken_worker()
    assert gc.get_freeze_count() > 1000
