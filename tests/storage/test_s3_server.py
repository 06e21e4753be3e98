"""The test server goes away with its owner, however that one ends."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.s3

_OWNER = """
import sys
from pathlib import Path
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.testing.s3_server import run_s3_server
with run_s3_server(Path(sys.argv[1]), clock=SystemClock()) as server:
    print(server.endpoint, flush=True)
    sys.stdin.read()
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_server_ends_with_its_owner(tmp_path: Path, end: str) -> None:
    """After a normal end and after SIGKILL of the owner nobody listens any more."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout:
        address = urlsplit(owner.stdout.readline().strip())
        assert address.hostname == "127.0.0.1"
        socket.create_connection((address.hostname, address.port or 0)).close()
        if end == "kill":
            owner.send_signal(signal.SIGKILL)
        else:
            owner.stdin.close()
        owner.wait(60)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                socket.create_connection((address.hostname, address.port or 0)).close()
            except ConnectionRefusedError:
                return
            except ConnectionResetError:  # accepted by the kernel while the listener closed
                continue
    pytest.fail("the server outlived its owner")
