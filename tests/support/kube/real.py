"""A real kube-apiserver, with its etcd and Kubernetes' Job controller, as one program.

`scripts/kube_apiserver.py` builds it from `apiserver/main.go`.
"""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from scripts_loaded import load_script


@contextmanager
def kube_apiserver(folder: Path) -> Iterator[str]:
    """Run one; yield its URL. Skips the test where the program was not built."""
    program = load_script("kube_apiserver").PROGRAM
    if not program.exists():
        pytest.skip(f"{program.name} is missing: run scripts/kube_apiserver.py")
    folder.mkdir()
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form, plain = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    port, etcd = _free_ports(2)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, str(folder), str(port), str(etcd), str(folder / "key.pem")],
            stdout=log,
            stderr=log,
        )
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
