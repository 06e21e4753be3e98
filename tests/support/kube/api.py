"""A Kubernetes API server on loopback: as much of it as Spark's backend and its client use.

Create, get, list, watch (over WebSockets or in lines), replace, patches, delete, delete of
collections, of any kind; of pods status, binding and eviction.
"""

import asyncio
import json
import re
from contextlib import suppress
from typing import Any

import yaml
from aiohttp import WSMsgType, web
from objects import Key, Object, Objects, RefusedError, merged, patched

_PATH = re.compile(
    r"/(?:api|apis/[^/]+)/[^/]+(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<kind>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?"
)
_KINDS = {"pods": "Pod", "configmaps": "ConfigMap", "services": "Service"}


class Api:
    """Answers requests for objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def answer(self, request: web.Request) -> web.StreamResponse:
        match = _PATH.fullmatch(request.path)
        if request.path == "/version":
            return web.json_response({"major": "1", "minor": "35", "gitVersion": "v1.35.0"})
        if match is None:
            return _refused(RefusedError(404, "NotFound", request.path))
        key = Key(match["kind"], match["namespace"] or "", match["name"] or "")
        raw = await request.read()
        body = yaml.safe_load(raw) if raw else {}
        try:
            if request.query.get("watch") in ("true", "1"):
                return await self._watch(request, key)
            found = self._of_one(request, key, match["part"], body) if key.name else None
            return web.json_response(found or self._of_all(request, key, body))
        except RefusedError as refused:
            return _refused(refused)

    def _of_all(self, request: web.Request, at: Key, body: Object) -> Object:
        if request.method == "POST":
            return self._objects.create(at, body)
        found = self._objects.listed(at, request.query)
        if request.method == "DELETE":
            for one in found:
                meta = one["metadata"]
                key = at._replace(namespace=meta["namespace"], name=meta["name"])
                self._objects.delete(key, _grace(request, body))
        kind = f"{_KINDS.get(at.kind, at.kind)}List"
        version = {"resourceVersion": str(self._objects.version)}
        return {"kind": kind, "apiVersion": "v1", "metadata": version, "items": found}

    def _of_one(self, request: web.Request, key: Key, part: str | None, body: Any) -> Object:
        objects, kind = self._objects, request.content_type
        if part == "eviction":
            found = objects.get(key)
            lost = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            conditions = [*found["status"].get("conditions", []), lost]
            objects.replace(key, merged(found, {"status": {"conditions": conditions}}), status=True)
            return objects.delete(key, _grace(request, body.get("deleteOptions") or {}))
        if part == "binding":
            placed = {"spec": {"nodeName": body["target"]["name"]}}
            return objects.replace(key, merged(objects.get(key), placed))
        if request.method == "GET":
            return objects.get(key)
        if request.method == "DELETE":
            return objects.delete(key, _grace(request, body))
        if request.method == "PUT":
            return objects.replace(key, body, status=part == "status")
        if kind == "application/apply-patch+yaml" and not objects.listed(key, {}):
            return objects.create(key, body)
        old = objects.get(key)
        new = patched(old, body) if kind == "application/json-patch+json" else merged(old, body)
        return objects.replace(key, new, status=part == "status")

    async def _watch(self, request: web.Request, at: Key) -> web.StreamResponse:
        """Send changes until the client goes."""
        version = int(request.query.get("resourceVersion") or 0)
        standing: list[Object] = []
        if not version:
            standing, version = self._objects.listed(at, request.query), self._objects.version
        socket, lines = web.WebSocketResponse(), web.StreamResponse()
        by_socket = socket.can_prepare(request).ok
        await (socket if by_socket else lines).prepare(request)

        async def send(what: str, found: Object) -> None:
            text = json.dumps({"type": what, "object": found})
            await (socket.send_str(text) if by_socket else lines.write(f"{text}\n".encode()))

        async def follow() -> None:
            for found in standing:
                await send("ADDED", found)
            async for change in self._objects.changes(at, request.query, version):
                await send(change.what, change.object)

        async def gone() -> None:
            closing = (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING, WSMsgType.ERROR)
            while (await socket.receive()).type not in closing:
                pass

        tasks = [asyncio.create_task(follow())]
        if by_socket:
            tasks.append(asyncio.create_task(gone()))
        try:
            seconds = float(request.query.get("timeoutSeconds") or 3600)
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        with suppress(ConnectionError):
            await (socket.close() if by_socket else lines.write_eof())
        return socket if by_socket else lines


def _grace(request: web.Request, body: Object) -> int | None:
    given = body.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
    return None if given is None else int(given)


def _refused(refused: RefusedError) -> web.Response:
    said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    said |= {"code": refused.code, "reason": refused.reason, "message": str(refused)}
    return web.json_response(said, status=refused.code)
