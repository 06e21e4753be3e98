"""Pods as processes of this machine: what a kubelet and the entrypoint of Spark's image do.

A pod has a loopback address and a folder of its own, with `pid`, `log` and its volumes. One that is
deleted gets its preStop hook, SIGTERM, and SIGKILL behind its grace period. Three annotations stand
for what happens to nodes: `here/pressure` kills the pod for want of memory, `here/lost` kills it
and tells nobody, `here/replaced` removes the object of such a pod, as the cloud does later.
"""

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from objects import Key, Object, Objects, merged, now

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
_MARK = "POD_OF_TEST"
_POLL_SECONDS = 0.05
_DISRUPTED = {"type": "DisruptionTarget", "status": "True"}


class Pods:
    """Runs what stands in pods. `image` is the environment that an image would have."""

    def __init__(self, objects: Objects, folder: Path, image: Mapping[str, str]) -> None:
        self._objects, self._folder, self._image = objects, folder, image
        self._lives: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Start each pod that is made, for ever; kills all when it is cancelled."""
        started: list[str] = []
        try:
            async for change in self._objects.changes(Key("pods", ""), {}, 0):
                if change.what == "ADDED":
                    started.append(change.object["metadata"]["uid"])
                    address = f"127.0.1.{len(started) % 250 + 1}"
                    life = asyncio.create_task(self._live(change.key, change.object, address))
                    self._lives.add(life)
                    life.add_done_callback(_raised)
        finally:
            for life in self._lives:
                life.cancel()
            for uid in started:
                _kill(uid)

    async def _live(self, key: Key, pod: Object, address: str) -> None:
        """Run one pod from its start to the end of its object."""
        uid, (container, *_) = pod["metadata"]["uid"], pod["spec"]["containers"]
        place = self._folder / key.name
        place.mkdir(parents=True)
        self._objects.replace(key, merged(pod, {"spec": {"nodeName": "here"}, "metadata": _ANY}))
        mounts = await self._mounts(key, pod, container, place)
        if mounts is not None:
            process = await _start(
                self._environment(pod, container, address, mounts), container, place, mounts
            )
            running = {"containerStatuses": [_state(container, running={"startedAt": now()})]}
            ready = [{"type": "Ready", "status": "True"}]
            addresses = {"podIP": address, "hostIP": "127.0.0.1", "startTime": now()}
            self._tell(key, {"phase": "Running", "conditions": ready, **addresses, **running})
            ending = asyncio.create_task(process.wait())
            reason = None
            while not ending.done():
                now_is = self._seen(key, uid)
                wanted = (now_is or pod)["metadata"].get("annotations") or {}
                if "here/lost" in wanted:
                    _kill(uid)
                    await ending
                    await self._replaced(key, uid)
                    return
                if "here/pressure" in wanted:
                    reason = "Evicted"
                    _kill(uid)
                elif now_is is None or now_is["metadata"].get("deletionTimestamp"):
                    grace = (
                        0 if now_is is None else now_is["metadata"]["deletionGracePeriodSeconds"]
                    )
                    await _end(process, ending, container, grace, uid)
                await asyncio.wait([ending], timeout=_POLL_SECONDS)
            _kill(uid)
            self._tell_end(key, container, await ending, reason)
        while (found := self._seen(key, uid)) and not found["metadata"].get("deletionTimestamp"):
            await asyncio.sleep(_POLL_SECONDS)
        if found:
            self._objects.delete(key, 0)

    def _seen(self, key: Key, uid: str) -> Object | None:
        found = self._objects.listed(key, {})
        return next((one for one in found if one["metadata"]["uid"] == uid), None)

    def _tell(self, key: Key, status: Object) -> None:
        if found := self._objects.listed(key, {}):
            self._objects.replace(key, merged(found[0], {"status": status}), status=True)

    def _tell_end(self, key: Key, container: Object, code: int, reason: str | None) -> None:
        exit_code = code if code >= 0 else 128 - code
        why = reason or ("Error" if exit_code else "Completed")
        ended = {"exitCode": exit_code, "reason": why, "finishedAt": now()}
        conditions = [{"type": "Ready", "status": "False"}]
        more: Object = {}
        if reason is not None:
            conditions.append({**_DISRUPTED, "reason": "TerminationByKubelet"})
            more = {"reason": reason, "message": "The node was low on resource: memory."}
        states = [_state(container, terminated=ended)]
        phase = "Failed" if exit_code else "Succeeded"
        self._tell(
            key, {"phase": phase, "containerStatuses": states, "conditions": conditions, **more}
        )

    async def _replaced(self, key: Key, uid: str) -> None:
        """Wait until the cloud finds that the node is gone, then delete the pod's object."""
        while found := self._seen(key, uid):
            if "here/replaced" in found["metadata"]["annotations"]:
                conditions = [{**_DISRUPTED, "reason": "DeletionByPodGC"}]
                self._tell(key, {"phase": "Failed", "conditions": conditions})
                self._objects.delete(key, 0)
            await asyncio.sleep(_POLL_SECONDS)

    async def _mounts(
        self, key: Key, pod: Object, container: Object, place: Path
    ) -> dict[str, str] | None:
        """Make the volumes; return where each is mounted -> its folder. None if the pod goes."""
        made: dict[str, str] = {}
        for volume in pod["spec"].get("volumes") or []:
            target = place / "volumes" / volume["name"]
            target.mkdir(parents=True)
            made[volume["name"]] = str(target)
            if "configMap" in volume:
                config = Key("configmaps", key.namespace, volume["configMap"]["name"])
                while not (found := self._objects.listed(config, {})):
                    seen = self._seen(key, pod["metadata"]["uid"])
                    if seen is None or seen["metadata"].get("deletionTimestamp"):
                        return None
                    await asyncio.sleep(_POLL_SECONDS)
                for name, text in (found[0].get("data") or {}).items():
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
        for variable in container.get("env") or []:
            source = (variable.get("valueFrom") or {}).get("fieldRef")
            value = fields[source["fieldPath"]] if source else variable.get("value", "")
            found[variable["name"]] = _placed(_filled(value, found), mounts)
        return found


_ANY = {"resourceVersion": None}
"""Drops the version that an object was read at."""


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


def _raised(life: asyncio.Task[None]) -> None:
    """Let an error of a pod end the process, which ends the test."""
    if not life.cancelled() and (error := life.exception()) is not None:
        asyncio.get_running_loop().call_exception_handler({"message": "a pod", "exception": error})
