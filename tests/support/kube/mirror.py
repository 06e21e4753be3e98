"""What a kubelet knows of an API server, from its watches, and what it tells it."""

import asyncio
import json
from typing import Any, NamedTuple

import aiohttp

Object = dict[str, Any]
KINDS = ("pods", "configmaps", "services")
_MERGE = "application/merge-patch+json"
_LONGEST_LINE = 1 << 22
_GONE = (404, 409)
"""Statuses that say that an object is no longer what it was."""


class Place(NamedTuple):
    """Where an object is."""

    kind: str
    """As in paths, for example "pods"."""
    namespace: str
    name: str


class Mirror:
    """The objects of an API server, as its watches tell them."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url
        self._objects: dict[str, dict[Place, Object]] = {kind: {} for kind in KINDS}
        self._change = asyncio.Event()

    def all(self, kind: str) -> list[Object]:
        return list(self._objects[kind].values())

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return self._objects[kind].get(Place(kind, namespace, name))

    def now(self, pod: Object) -> Object | None:
        """Return a pod as it is now; None if it is gone."""
        found = self._objects["pods"].get(place_of("pods", pod))
        return found if found and found["metadata"]["uid"] == pod["metadata"]["uid"] else None

    async def changed(self) -> None:
        """Wait for the next change of anything."""
        await self._change.wait()

    async def follow(self, kind: str) -> None:
        """Learn of every change, until this is cancelled; lists anew when a watch ends."""
        while True:
            listed = await self._call("GET", f"/api/v1/{kind}")
            self._objects[kind] = {place_of(kind, one): one for one in listed["items"]}
            self._tell_change()
            query = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
            url = f"{self._url}/api/v1/{kind}"
            forever = aiohttp.ClientTimeout(total=None)
            async with self._session.get(url, params=query, timeout=forever) as changes:
                async for line in changes.content:
                    change = json.loads(line)
                    if change["type"] == "ERROR":
                        break
                    place = place_of(kind, change["object"])
                    if change["type"] == "DELETED":
                        self._objects[kind].pop(place, None)
                    else:
                        self._objects[kind][place] = change["object"]
                    self._tell_change()

    async def bind(self, pod: Object, node: str) -> None:
        """Place a pod on a node, as a scheduler does."""
        name = {"name": pod["metadata"]["name"]}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": name, "target": target}
        await self._about(pod, "POST", "/binding", body)

    async def tell(self, pod: Object, status: Object) -> None:
        """Say how a pod is; conditions that are not named stay."""
        before = ((self.now(pod) or pod).get("status") or {}).get("conditions") or []
        named = {one["type"]: one for one in [*before, *status["conditions"]]}
        status = {**status, "conditions": list(named.values())}
        await self._about(pod, "PATCH", "/status", {"status": status}, _MERGE)

    async def remove(self, pod: Object, grace: int | None = 0) -> None:
        """Delete a pod's object, at once or behind a grace period; None: its own."""
        await self._about(pod, "DELETE", "", {} if grace is None else {"gracePeriodSeconds": grace})

    async def _about(
        self, pod: Object, method: str, part: str, body: Object, kind: str = "application/json"
    ) -> None:
        """Do something to a pod, which may be gone."""
        if self.now(pod) is None:
            return
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}{part}"
        try:
            await self._call(method, path, body, kind)
        except aiohttp.ClientResponseError as refused:
            if refused.status not in _GONE:
                raise

    async def _call(
        self, method: str, path: str, body: Object | None = None, kind: str = "application/json"
    ) -> Any:
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": kind}
        async with self._session.request(
            method, self._url + path, data=data, headers=headers, raise_for_status=True
        ) as answer:
            return await answer.json()

    def _tell_change(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


def place_of(kind: str, found: Object) -> Place:
    """Return where an object is."""
    return Place(kind, found["metadata"]["namespace"], found["metadata"]["name"])


def connected(url: str) -> Mirror:
    """Return a mirror with a session of its own; loopback's certificates are not checked."""
    connector = aiohttp.TCPConnector(ssl=False)
    return Mirror(aiohttp.ClientSession(connector=connector, read_bufsize=_LONGEST_LINE), url)
