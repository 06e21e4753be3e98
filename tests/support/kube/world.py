"""What tests ask of a Kubernetes of one machine, and do to its pods."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PODS = "/api/v1/namespaces/default/pods"


class Kubernetes:
    """An API server, and pods that are processes."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self._folder = url, folder

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, {"Content-Type": kind}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def phases(self) -> dict[str, str]:
        """Pod -> its phase."""
        found = self.call("GET", PODS)["items"]
        return {pod["metadata"]["name"]: pod["status"]["phase"] for pod in found}

    def running(self) -> list[str]:
        return [name for name, phase in self.phases().items() if phase == "Running"]

    def delete(self, pod: str, grace: int) -> None:
        self.call("DELETE", f"{PODS}/{pod}", {"gracePeriodSeconds": grace})

    def evict(self, pod: str) -> None:
        name = {"name": pod, "namespace": "default"}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": name}
        self.call("POST", f"{PODS}/{pod}/eviction", body)

    def annotate(self, pod: str, *names: str) -> None:
        """Let something happen to the pod's node; see `pods.py`."""
        annotations = {"metadata": {"annotations": dict.fromkeys(names, "now")}}
        self.call("PATCH", f"{PODS}/{pod}", annotations, "application/merge-patch+json")

    def kill(self, pod: str) -> None:
        """SIGKILL its first process, as the kernel does for want of memory."""
        os.kill(int((self._folder / pod / "pid").read_text()), signal.SIGKILL)

    def log(self, pod: str) -> str:
        return (self._folder / pod / "log").read_text(errors="replace")


@contextmanager
def kubernetes(folder: Path, image: Mapping[str, str]) -> Iterator[Kubernetes]:
    """Start one; all of its pods end with the block.

    Args:
        image: environment of the pods' processes.
    """
    program = Path(__file__).with_name("server.py")
    with (folder / "kubernetes.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(program), str(folder / "pods")],
            env={**os.environ, "IMAGE": json.dumps(dict(image))},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, (folder / "kubernetes.log").read_text()
        yield Kubernetes(url, folder / "pods")
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
