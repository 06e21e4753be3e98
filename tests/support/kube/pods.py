"""Pods as processes of this machine: what a kubelet and the entrypoint of Spark's image do.

A pod has a loopback address and a folder of its own, with `pid`, `log` and its volumes. One that is
deleted gets its preStop hook, SIGTERM, and SIGKILL behind its grace period. Three annotations stand
for what happens to nodes: `here/pressure` kills the pod for want of memory, `here/lost` kills it
and tells nobody, `here/replaced` removes the object of such a pod, as the cloud does later. A pod
goes with the pod that owns it, as Kubernetes collects them.
"""

import asyncio
import os
import re
import shutil
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mirror import Mirror, Object
from objects import now

_BACKEND = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_ARGUMENTS = {
    "driver-url": "SPARK_DRIVER_URL",
    "executor-id": "SPARK_EXECUTOR_ID",
    "cores": "SPARK_EXECUTOR_CORES",
    "app-id": "SPARK_APPLICATION_ID",
    "hostname": "SPARK_EXECUTOR_POD_IP",
    "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "podName": "SPARK_EXECUTOR_POD_NAME",
}
"""Argument of the executor's backend -> variable that Spark sets for its pod."""
_INIT = "/usr/bin/tini"
"""Is in Spark's images and starts what stands behind its "--"."""
_MARK = "POD_OF_TEST"
_POLL_SECONDS = 0.05
_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


class Pods:
    """Runs what stands in pods. `image` is the environment that an image would have."""

    def __init__(self, cluster: Mirror, folder: Path, image: Mapping[str, str]) -> None:
        self._cluster, self._folder, self._image = cluster, folder, image
        self._started: set[str] = set()

    async def run(self) -> None:
        """Start each pod that is made, for ever; kills all when it is cancelled."""
        hosts = self._folder / "hosts"
        try:
            async with asyncio.TaskGroup() as lives:
                while True:
                    for pod in self._cluster.all("pods"):
                        uid = pod["metadata"]["uid"]
                        if uid not in self._started and "nodeName" not in pod["spec"]:
                            self._started.add(uid)
                            address = f"127.0.1.{len(self._started) % 250 + 1}"
                            lives.create_task(self._live(pod, address))
                        if _orphaned(pod, self._cluster.all("pods")):
                            await self._cluster.remove(pod, None)
                    write_hosts(hosts, self._cluster.all("services"), self._cluster.all("pods"))
                    await self._cluster.changed()
        finally:
            for uid in self._started:
                _kill(uid)

    async def _live(self, pod: Object, address: str) -> None:
        """Run one pod from its start to the end of its object."""
        meta, (container, *_) = pod["metadata"], pod["spec"]["containers"]
        place = self._folder / meta["name"]
        place.mkdir(parents=True)
        await self._cluster.bind(pod, "here")
        mounts = await self._mounts(pod, container, place)
        if mounts is not None:
            environment = self._environment(pod, container, address, mounts)
            process = await _start(environment, container, place, mounts)
            running = {"containerStatuses": [_state(container, running={"startedAt": now()})]}
            ready = [{"type": "Ready", "status": "True"}]
            addresses = {"podIP": address, "hostIP": "127.0.0.1", "startTime": now()}
            said = {"phase": "Running", "conditions": ready, **addresses, **running}
            await self._cluster.tell(pod, said)
            ending = asyncio.create_task(process.wait())
            reason = None
            while not ending.done():
                found = (self._cluster.now(pod) or _FORCED)["metadata"]
                wanted = found.get("annotations") or {}
                if "here/lost" in wanted:
                    _kill(meta["uid"])
                    await ending
                    await self._replaced(pod)
                    break
                if "here/pressure" in wanted:
                    reason = "Evicted"
                    _kill(meta["uid"])
                elif found.get("deletionTimestamp"):
                    grace = found["deletionGracePeriodSeconds"]
                    await _end(process, ending, container, grace, meta["uid"])
                await asyncio.wait([ending], timeout=_POLL_SECONDS)
            _kill(meta["uid"])
            await self._tell_end(pod, container, await ending, reason)
        while not (self._cluster.now(pod) or _FORCED)["metadata"].get("deletionTimestamp"):
            await asyncio.sleep(_POLL_SECONDS)
        await self._cluster.remove(pod)

    async def _tell_end(
        self, pod: Object, container: Object, code: int, reason: str | None
    ) -> None:
        exit_code = code if code >= 0 else 128 - code
        why = reason or ("Error" if exit_code else "Completed")
        ended = {"exitCode": exit_code, "reason": why, "startedAt": now(), "finishedAt": now()}
        conditions = [{"type": "Ready", "status": "False"}]
        more: Object = {}
        if reason is not None:
            conditions.append({**_DISRUPTED, "reason": "TerminationByKubelet"})
            more = {"reason": reason, "message": "The node was low on resource: memory."}
        states = [_state(container, terminated=ended)]
        phase = "Failed" if exit_code else "Succeeded"
        said = {"phase": phase, "containerStatuses": states, "conditions": conditions, **more}
        await self._cluster.tell(pod, said)

    async def _replaced(self, pod: Object) -> None:
        """Wait until the cloud finds that the node is gone, then delete the pod's object."""
        while found := self._cluster.now(pod):
            if "here/replaced" in found["metadata"]["annotations"]:
                conditions = [{**_DISRUPTED, "reason": "DeletionByPodGC"}]
                await self._cluster.tell(pod, {"phase": "Failed", "conditions": conditions})
                await self._cluster.remove(pod)
            await asyncio.sleep(_POLL_SECONDS)

    async def _mounts(self, pod: Object, container: Object, place: Path) -> dict[str, str] | None:
        """Make the volumes; return where each is mounted -> its folder. None if the pod goes."""
        made: dict[str, str] = {}
        for volume in pod["spec"].get("volumes") or []:
            target = place / "volumes" / volume["name"]
            target.mkdir(parents=True)
            made[volume["name"]] = str(target)
            if "configMap" in volume:
                config = ("configmaps", pod["metadata"]["namespace"], volume["configMap"]["name"])
                while not (found := self._cluster.get(*config)):
                    if (self._cluster.now(pod) or _FORCED)["metadata"].get("deletionTimestamp"):
                        return None
                    await asyncio.sleep(_POLL_SECONDS)
                for name, text in (found.get("data") or {}).items():
                    (target / name).write_text(text)
        mounts = container.get("volumeMounts") or []
        return {m["mountPath"]: made[m["name"]] for m in mounts if m["name"] in made}

    def _environment(
        self, pod: Object, container: Object, address: str, mounts: Mapping[str, str]
    ) -> dict[str, str]:
        meta = pod["metadata"]
        fields = {"status.podIP": address}
        fields |= {f"metadata.{name}": meta[name] for name in ("name", "namespace", "uid")}
        found = {**self._image, "HOSTNAME": meta["name"], _MARK: meta["uid"]}
        names = f"-Djdk.net.hosts.file={self._folder / 'hosts'}"
        found["JAVA_TOOL_OPTIONS"] = f"{found.get('JAVA_TOOL_OPTIONS', '')} {names}".strip()
        for variable in container.get("env") or []:
            source = (variable.get("valueFrom") or {}).get("fieldRef")
            value = fields[source["fieldPath"]] if source else variable.get("value", "")
            found[variable["name"]] = _placed(_filled(value, found), mounts)
        return found


_FORCED: Object = {"metadata": {"deletionTimestamp": "now", "deletionGracePeriodSeconds": 0}}
"""Stands for a pod whose object is gone."""


def _orphaned(pod: Object, pods: list[Object]) -> bool:
    """Return whether the pod that owns a pod is gone, which is to go, too."""
    meta = pod["metadata"]
    there = {one["metadata"]["uid"] for one in pods}
    owners = [one["uid"] for one in meta.get("ownerReferences") or [] if one["kind"] == "Pod"]
    return not meta.get("deletionTimestamp") and not there.issuperset(owners)


def write_hosts(path: Path, services: list[Object], pods: list[Object]) -> None:
    """Write the names of services for the JVMs of pods, which know no others than these."""
    names = {"localhost": "127.0.0.1", socket.gethostname(): "127.0.0.1"}
    for service in services:
        meta, wanted = service["metadata"], service["spec"].get("selector") or {}
        for pod in pods:
            labels, address = pod["metadata"].get("labels") or {}, pod["status"].get("podIP")
            if wanted and address and wanted.items() <= labels.items():
                names[f"{meta['name']}.{meta['namespace']}.svc"] = address
    text = "".join(f"{address} {name}\n" for name, address in names.items())
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name("hosts.new").write_text(text)
        path.with_name("hosts.new").rename(path)


def _state(container: Object, **state: Object) -> Object:
    ready = "running" in state
    named = {"name": container["name"], "image": container.get("image", ""), "imageID": ""}
    return {**named, "ready": ready, "started": ready, "restartCount": 0, "state": state}


def _filled(text: str, environment: Mapping[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda m: environment.get(m[1], m[0]), text)


def _placed(text: str, mounts: Mapping[str, str]) -> str:
    """Return a text with the folders of this machine in place of those in the container."""
    for inside, outside in mounts.items():
        text = re.sub(rf"(?<![\w/]){re.escape(inside)}(?![\w-])", outside, text)
    return text


def _words(arguments: list[str], environment: Mapping[str, str]) -> list[str]:
    """Return the command that the entrypoint of Spark's image makes of its arguments."""
    if arguments[:1] == ["driver"]:
        address = environment["SPARK_DRIVER_BIND_ADDRESS"]
        submit = f"{environment['SPARK_HOME']}/bin/spark-submit"
        bound = ("--conf", f"spark.driver.bindAddress={address}", "--deploy-mode", "client")
        return [submit, *bound, *arguments[1:]]
    if arguments[:1] == [_INIT] and not Path(_INIT).exists():
        return arguments[2:]
    if arguments[:1] != ["executor"]:
        return arguments
    options = sorted(
        (name for name in environment if name.startswith("SPARK_JAVA_OPT_")),
        key=lambda name: int(name.rpartition("_")[2]),
    )
    memory = environment["SPARK_EXECUTOR_MEMORY"]
    folders = [environment.get("SPARK_CONF_DIR", ""), f"{environment['SPARK_HOME']}/jars/*"]
    named = (word for name, key in _ARGUMENTS.items() for word in (f"--{name}", environment[key]))
    return [
        *("java", *(environment[name] for name in options), f"-Xms{memory}", f"-Xmx{memory}"),
        *("-cp", ":".join(filter(None, folders)), _BACKEND, *named),
    ]


async def _start(
    environment: dict[str, str], container: Object, place: Path, mounts: Mapping[str, str]
) -> Any:
    given = [*(container.get("command") or []), *(container.get("args") or [])]
    words = _words([_placed(_filled(word, environment), mounts) for word in given], environment)
    program = shutil.which(words[0], path=environment["PATH"]) or words[0]
    with (place / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(program, *words[1:]),
            env={**environment, "HOME": str(place), "TMPDIR": str(place)},
            cwd=place,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (place / "pid").write_text(str(process.pid))
    return process


async def _end(process: Any, ending: Any, container: Object, grace: float, uid: str) -> None:
    """Spark's preStop hook sends SIGPWR and waits for the JVM; then SIGTERM, then SIGKILL."""
    loop = asyncio.get_running_loop()
    end = loop.time() + grace
    if "preStop" in (container.get("lifecycle") or {}):
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGPWR)
        await asyncio.wait([ending], timeout=grace)
    with suppress(ProcessLookupError):
        process.terminate()
    await asyncio.wait([ending], timeout=max(0.0, end - loop.time()))
    _kill(uid)
    await ending


def _kill(uid: str) -> None:
    """Kill all processes of a pod: those that inherited its mark."""
    mark = f"{_MARK}={uid}\0".encode()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
