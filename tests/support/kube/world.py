"""What tests ask of a Kubernetes of one machine, and do to its pods."""

import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kube.real import kube_apiserver
from pipelines import until
from processes import command_of, descendants

_UNCHECKED = ssl._create_unverified_context()
"""For loopback."""
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
        with urllib.request.urlopen(request, timeout=60, context=_UNCHECKED) as answer:
            return json.loads(answer.read())

    def ready(self) -> bool:
        """Return whether the real API server answers and has its namespace."""
        try:
            self.call("GET", "/api/v1/namespaces/default")
        except OSError:
            return False
        return True

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

    def kill(self, pod: str, words: str = "") -> None:
        """SIGKILL its first process, as the kernel does for want of memory; or the one in it whose
        command line holds words."""
        pid = int((self._folder / pod / "pid").read_text())
        if words:
            (pid,) = (child for child, _ in descendants(pid) if words in command_of(child))
        os.kill(pid, signal.SIGKILL)

    def log(self, pod: str) -> str:
        return (self._folder / pod / "log").read_text(errors="replace")


@contextmanager
def kubernetes(
    folder: Path, image: Mapping[str, str], *, real: bool = False
) -> Iterator[Kubernetes]:
    """Start one; all of its pods end with the block.

    Args:
        image: environment of the pods' processes.
        real: with Kubernetes' own API server and Job controller.
    """
    with kube_apiserver(folder / "api") if real else _api_server(folder) as url:
        found = Kubernetes(url, folder / "pods")
        if real:
            until(found.ready, "the API server answers")
        program = Path(__file__).with_name("kubelet.py")
        with (folder / "kubelet.log").open("wb") as log:
            kubelet = subprocess.Popen(
                [sys.executable, str(program), url, str(folder / "pods")],
                env={**os.environ, "IMAGE": json.dumps(dict(image))},
                stdout=log,
                stderr=log,
            )
        try:
            yield found
        finally:
            kubelet.terminate()
            kubelet.wait(60)


@contextmanager
def _api_server(folder: Path) -> Iterator[str]:
    """Run the one in memory."""
    program = Path(__file__).with_name("server.py")
    with (folder / "api.log").open("wb") as log:
        command = [sys.executable, str(program)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, (folder / "api.log").read_text()
        yield url
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
