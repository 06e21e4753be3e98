"""Objects of a Kubernetes API in memory, and every change of them in order.

Any kind is kept. Only pods are special: one that runs on a node is marked when it is deleted, and
goes when its kubelet says so.
"""

import asyncio
import copy
import itertools
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

Object = dict[str, Any]
GRACE_SECONDS = 30
_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
_KEPT = ("uid", "creationTimestamp", "namespace", "name", *_DELETION)


class RefusedError(Exception):
    """What a client is told in place of an answer."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


class Key(NamedTuple):
    kind: str
    """As in paths, for example "pods"."""
    namespace: str
    name: str = ""


class Change(NamedTuple):
    version: int
    key: Key
    what: str
    """ADDED, MODIFIED or DELETED."""
    object: Object


class Objects:
    """All objects, for one event loop."""

    def __init__(self) -> None:
        self._objects: dict[Key, Object] = {}
        self._changes: list[Change] = []
        self._changed = asyncio.Event()
        self._numbers = itertools.count(1)

    @property
    def version(self) -> int:
        return len(self._changes)

    def get(self, key: Key) -> Object:
        if key not in self._objects:
            raise RefusedError(404, "NotFound", f"{key.kind} {key.name!r} not found")
        return copy.deepcopy(self._objects[key])

    def listed(self, at: Key, query: Mapping[str, str]) -> list[Object]:
        """Return the objects of a kind, in one namespace or in all, that the query selects."""
        return [
            copy.deepcopy(found)
            for key, found in self._objects.items()
            if _fits(key, found, at, query)
        ]

    def create(self, at: Key, given: Object) -> Object:
        meta = given.setdefault("metadata", {})
        number = next(self._numbers)
        name = meta.setdefault("name", f"{meta.get('generateName', '')}{number:05d}")
        key = at._replace(name=name)
        if key in self._objects:
            raise RefusedError(409, "AlreadyExists", f"{key.kind} {name!r} already exists")
        uid = str(uuid.uuid4())  # other servers on this machine have other pods
        meta |= {"namespace": at.namespace, "uid": uid, "creationTimestamp": now()}
        if at.kind == "pods":
            given["status"] = {"phase": "Pending"}
            given["spec"].setdefault("terminationGracePeriodSeconds", GRACE_SECONDS)
        return self._note(key, "ADDED", given)

    def replace(self, key: Key, new: Object, *, status: bool = False) -> Object:
        """Keep what a client sends in place of an object, or of its status alone."""
        old = self.get(key)
        if status:
            return self._note(key, "MODIFIED", {**old, "status": new.get("status", {})})
        seen = new.get("metadata", {}).get("resourceVersion")
        if seen not in (None, old["metadata"]["resourceVersion"]):
            raise RefusedError(409, "Conflict", "the object has been modified")
        if "status" in old:
            new["status"] = old["status"]
        kept = {name: value for name, value in old["metadata"].items() if name in _KEPT}
        new["metadata"] = {**new.get("metadata", {}), **kept}
        return self._note(key, "MODIFIED", new)

    def delete(self, key: Key, grace: int | None = None) -> Object:
        """Delete an object; mark it if it is a pod on a node and `grace` is not 0."""
        found = self.get(key)
        if key.kind != "pods" or grace == 0 or not found["spec"].get("nodeName"):
            return self._note(key, "DELETED", found)
        seconds = found["spec"]["terminationGracePeriodSeconds"] if grace is None else grace
        before = found["metadata"].get("deletionGracePeriodSeconds")
        if before is not None and before <= seconds:
            return found
        found["metadata"] |= dict(zip(_DELETION, (now(), seconds), strict=True))
        return self._note(key, "MODIFIED", found)

    async def changes(
        self, at: Key, query: Mapping[str, str], version: int
    ) -> AsyncIterator[Change]:
        """Yield what changes behind a version, for ever."""
        place = version
        while True:
            while place < len(self._changes):
                change = self._changes[place]
                place += 1
                if _fits(change.key, change.object, at, query):
                    yield change
            await self._changed.wait()

    def _note(self, key: Key, what: str, new: Object) -> Object:
        new["metadata"]["resourceVersion"] = str(self.version + 1)
        if what == "DELETED":
            self._objects.pop(key)
        else:
            self._objects[key] = new
        self._changes.append(Change(self.version + 1, key, what, copy.deepcopy(new)))
        self._changed.set()
        self._changed = asyncio.Event()
        return copy.deepcopy(new)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def merged(old: Any, new: Any) -> Any:
    """Return an object after a JSON merge patch (RFC 7396)."""
    if not isinstance(new, dict):
        return new
    found = dict(old) if isinstance(old, dict) else {}
    for name, value in new.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def patched(found: Object, operations: list[Object]) -> Object:
    """Return an object after a JSON patch (RFC 6902) of `add`, `replace`, `remove` and `test`."""
    for operation in operations:
        *path, last = (
            part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]
        )
        at: Any = found
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        where: Any = last
        if isinstance(at, list):
            where = len(at) if last == "-" else int(last)
        match operation["op"]:
            case "remove":
                at.pop(where)
            case "add" if isinstance(at, list):
                at.insert(where, operation["value"])
            case "add" | "replace":
                at[where] = operation["value"]
            case "test":
                if at[where] != operation["value"]:
                    raise RefusedError(409, "Conflict", f"{operation['path']} is another value")
            case other:
                raise RefusedError(422, "Invalid", f"patch by {other!r} is not known here")
    return found


def _fits(key: Key, found: Object, at: Key, query: Mapping[str, str]) -> bool:
    """Return whether an object is of a kind, in a namespace ("" for all), and selected."""
    if (
        key.kind != at.kind
        or at.namespace not in ("", key.namespace)
        or at.name not in ("", key.name)
    ):
        return False
    labels = found["metadata"].get("labels") or {}
    fields = {
        "metadata.name": key.name,
        "metadata.namespace": key.namespace,
        "status.phase": (found.get("status") or {}).get("phase", ""),
    }
    return _selected(labels, query.get("labelSelector", "")) and _selected(
        fields, query.get("fieldSelector", "")
    )


def _selected(values: Mapping[str, str], selector: str) -> bool:
    """Return whether values fit `a=b,c!=d,e in (f, g),h,!i`."""
    for term in re.findall(r"(?:[^,(]|\([^)]*\))+", selector):
        if listed := re.fullmatch(r"\s*(\S+)\s+(in|notin)\s+\(([^)]*)\)\s*", term):
            name, how, choices = listed.groups()
            if (values.get(name) in re.split(r"\s*,\s*", choices.strip())) != (how == "in"):
                return False
        elif pair := re.fullmatch(r"([^!=]+)(==|=|!=)(.*)", term):
            name, how, value = pair.groups()
            if (values.get(name) == value) == (how == "!="):
                return False
        elif (term.strip().lstrip("!") in values) == term.strip().startswith("!"):
            return False
    return True
