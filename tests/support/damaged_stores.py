"""A root with every kind of log and record, what was written into it, and damage to its objects.

The expectation is a dictionary filled from the rule by which rows are made; nothing of it is read
back. Damage is done to files, behind the storage's back.
"""

import os
import random
import re
import shutil
import struct
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgpack
import pyarrow as pa
from fuzz_process import _tree
from pipeline_steps import Numbers
from pipelines import copying, threads, until
from run_engine import SCHEMA as RUN_SCHEMA
from run_engine import EngineRun
from small_log import SCHEMA, numbered_rows
from small_stage import SMALL, SeededIds, new_stage
from stored_job import stored_stage

from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.serialization.markers import Checkpoint
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, read_state
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.seal.rewrite import replace_commits, sealed_commits
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.write.log_producer import LogProducer

Rows = dict[int, Counter[int]]
"""Partition -> the first column of its rows."""

SEALED, PARTITIONS = "sealed", 3
ROWS = (70, 0, 55)
_OUTPUT = pa.schema([("id", pa.int64())])


@dataclass
class Store:
    """A root, and per job and stage the rows that were written."""

    root: Path
    rows: dict[str, dict[str, Rows]] = field(default_factory=dict)
    open_ended: set[tuple[str, str]] = field(default_factory=set)
    """Stages whose producers never said that they ended: a view of them would wait."""
    outputs: dict[str, Counter[int]] = field(default_factory=dict)

    def keys(self) -> list[str]:
        """Return the keys of all objects, by walking the disk."""
        found = (p for p in self.root.rglob("*") if p.is_file() and ".durable" not in p.name)
        return sorted(p.relative_to(self.root).as_posix() for p in found)


def build(root: Path, seed: int) -> Store:
    """Write four jobs: sealed stages with consumers, log producers, a streaming run, a pipeline."""
    store = Store(root)
    ids = SeededIds(random.Random(seed))
    _sealed_job(store, ids)
    _log_job(store, ids)
    _run_job(store, ids, random.Random(seed))
    _pipeline(store)
    return store


def _sealed_job(store: Store, ids: SeededIds) -> None:
    storage = LocalStorage(store.root)
    log = JobLog.claim(storage, SEALED, ids.new_id())
    made = store.rows.setdefault(SEALED, {})

    def stage(name: str, compression: str, *, seal: bool = True) -> StageHandle:
        found = stored_stage(
            log,
            storage,
            job=SEALED,
            name=name,
            rows=ROWS,
            partitions=PARTITIONS + 1,
            used_partitions=PARTITIONS,
            commit=None if seal else (0, 1),
            seal=seal,
            settings=replace(SMALL, compression=compression),
            ids=ids,
        )
        if seal:
            made[name] = {
                k: Counter(
                    p * 1_000_000 + i
                    for p, rows in enumerate(ROWS)
                    for i in range(rows)
                    if i % PARTITIONS == k
                )
                for k in range(PARTITIONS + 1)
            }
        return found

    first, plain, repaired = stage("lz4", "lz4"), stage("plain", "none"), stage("repaired", "lz4")
    stage("unsealed", "lz4", seal=False)
    release_stage_of(log, storage, stage("gone", "lz4").path, ids)
    del made["gone"]
    compact_stage(plain, ids=ids, generation=1, settings=SMALL)
    state = read_state(repaired)
    assert state.seal is not None
    commits = sealed_commits(repaired, state.seal, SMALL)
    new = ids.new_id()
    replace_commits(repaired, state, commits, {}, generation=1, record_id=new, cause="test")
    for k in (0, 1):
        small = Settings(inline_state_bytes=8, frame_bytes=1024)
        with open_view(first, k, consumer="reader", settings=small) as view:
            for n, batch in enumerate(view):
                output = write_output(view.task, _OUTPUT, [batch.select(["id"])])
                view.ack(outputs=[output], state=b"a state of its own object")
                if k and n:
                    break
            else:
                view.finish()
    path = plain.path
    log.append(StageUse(ids.new_id(), 1, path.name, path.fingerprint, path.incarnation))


def _log_job(store: Store, ids: SeededIds) -> None:
    storage = LocalStorage(store.root)
    for job, ends in (("log", True), ("open-log", False)):
        log = JobLog.claim(storage, job, ids.new_id())
        stage = new_stage(storage, ids, SCHEMA, partitions=2, producers=2, writing="log", job=job)
        path = stage.path
        log.append(StageUse(ids.new_id(), 1, path.name, path.fingerprint, path.incarnation))
        for p, spans in enumerate((((0, 4), (4, 10), (10, 16)), ((100, 104), (104, 111)))):
            producer = LogProducer.open(
                stage, p, record_id=ids.new_id(), generation=1, settings=SMALL
            )
            with producer:
                for n, span in enumerate(spans):
                    producer.append(numbered_rows(*span, 2), b"%d" % n, markers=[Checkpoint(n)])
                if ends:
                    producer.end("FINITE")
        numbers = [*range(16), *range(100, 111)]
        rows = {k: Counter(n for n in numbers if n * 7 % 2 == k) for k in range(2)}
        store.rows[job] = {"stage": rows}
        if not ends:
            store.open_ended.add((job, "stage"))


def _run_job(store: Store, ids: SeededIds, draw: random.Random) -> None:
    storage = LocalStorage(store.root)
    log = JobLog.claim(storage, "run", ids.new_id())
    stage = new_stage(storage, ids, RUN_SCHEMA, partitions=2, writing="log", job="run")
    path = stage.path
    log.append(StageUse(ids.new_id(), 1, path.name, path.fingerprint, path.incarnation))
    for first in (0, 2):
        run = EngineRun(stage, draw)
        for batch in (first, first + 1):
            run.commit(batch, run.tasks(batch))
    store.rows["run"] = {
        "stage": {k: Counter(n for n in range(48) if n % 2 == k) for k in range(2)}
    }
    store.open_ended.add(("run", "stage"))


def _pipeline(store: Store) -> None:
    assert store.root.name == "data"  # where `copying` has its storage
    pipeline = copying(store.root.parent, Numbers(1, 60, 2, 0.02), lambda batch: batch)
    running = pipeline.start(launcher=threads, serve=True)
    until(lambda: running.phase is JobPhase.RUNNING, "all tasks run")
    PipelineClient("copying", storage=LocalStorage(store.root)).configure(commit_rows=9)
    done = running.wait(120)
    assert done.phase is JobPhase.FINISHED, done


# -- damage

Change = Callable[["Damage", random.Random], None]
_SLOT = re.compile(r"\d{10}")
STAGE_SLOT = "slot of a stage"


def kind_of(key: str) -> str:
    """Return what an object is, by the place that docs/internals/format.md gives it."""
    parts = key.split("/")
    if parts[1] in ("log", "commands", "requests", "status"):
        return f"slot of {parts[1]}"
    if parts[1] == "consumers":
        return "slot of a consumer" if _SLOT.fullmatch(parts[-1]) else f"consumer {parts[-2]}"
    if parts[1] == "snapshots":
        return "snapshot"
    return {"log": STAGE_SLOT, "producers": "slot of a producer"}.get(parts[2], parts[2])


@dataclass
class Damage:
    """What was done to a copy of a store."""

    root: Path
    keys: tuple[str, ...]
    """All objects of the store as it was written."""
    what: str = ""
    damaged: list[str] = field(default_factory=list)
    before: dict[str, bytes] = field(default_factory=dict)

    def path(self, key: str) -> Path:
        return self.root / key

    def take(self, key: str) -> bytes:
        """Remember an object that is about to change; return its bytes."""
        data = self.path(key).read_bytes()
        self.before[key] = data
        if key not in self.damaged:
            self.damaged.append(key)
        self.path(key).unlink()  # it may be a hard link to the store's
        return data

    def undo(self) -> None:
        """Put everything back that was changed."""
        for key, data in self.before.items():
            path = self.path(key)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def like(self, key: str, draw: random.Random) -> str | None:
        """Return another object of the same kind, of any job."""
        same = [k for k in self.keys if kind_of(k) == kind_of(key) and k != key]
        return draw.choice(same) if same else None


UNKNOWABLE = {
    "the end of a log": "A log ends at its first empty slot. If the last record is lost and no "
    "other object proves it, the log looks as if it ended one record earlier.",
    "a closed log": "In a log that ends in CLOSED, lower slots may have been deleted on purpose.",
    "an index of before": "New readers do not read what a REPLACE or COMPACT has replaced.",
    "an index anew": "A lost COMPACT, or a lost REPLACE that only made the index again, costs no "
    "row: readers use the index from before.",
    "a newer reuse": "A second STAGE record of a stage says only that it was used again.",
    "a snapshot": "A lost snapshot costs reading, and no row: readers begin at an older one, or at "
    "the log's first slot.",
}
"""Losses that `verify` cannot know of, each with the reason; docs/internals/guarantees.md
explains them."""


def unknowable(it: Damage) -> str:
    """Return which of `UNKNOWABLE` the damage is, "" if it must be noticed."""
    (key, *others) = it.damaged
    if not others and kind_of(key) == "index" and "/repaired-" in key:
        newest = max(k for k in it.keys if "/repaired-" in k and kind_of(k) == "slot of a stage")
        if key.rpartition("/")[2].encode() not in it.path(newest).read_bytes():
            return "an index of before"
    if not others and kind_of(key) == "snapshot":
        listed = os.path.lexists(it.path(key)) and not it.path(key).is_dir()
        return "" if listed else "a snapshot"
    if others or os.path.lexists(it.path(key)) or not _SLOT.fullmatch(key.rpartition("/")[2]):
        return ""
    prefix, _, _ = key.rpartition("/")
    log = sorted(k for k in it.keys if k.rpartition("/")[0] == prefix)
    closed = b"CLOSED" in it.path(log[-1]).read_bytes() if log[-1] != key else False
    if closed:
        return "a closed log"
    if log[-1] != key:
        return ""
    record = msgpack.unpackb(it.before[key][16:])
    fields = record["fields"]
    if record["kind"] == "COMPACT" or (record["kind"] == "REPLACE" and not fields["producers"]):
        return "an index anew"
    if record["kind"] == "STAGE":
        mine = fields["incarnation"].encode()
        return "a newer reuse" if any(mine in it.path(k).read_bytes() for k in log[:-1]) else ""
    if record["kind"] == "COMMIT":
        stage = "/".join(key.split("/")[:2])
        return "" if any(k.startswith(f"{stage}/index/") for k in it.keys) else "the end of a log"
    return "" if record["kind"] in PROVEN else "the end of a log"


PROVEN = ("DESCRIBE", "SEAL", "REPLACE")
"""Records that other objects prove wherever they stand: a stage's folder, its index."""


def flips(it: Damage, key: str, draw: random.Random) -> None:
    data = bytearray(it.take(key))
    for _ in range(draw.choice((1, 1, 1, 2, 9))):
        if data:
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    it.path(key).write_bytes(data)


def cut(it: Damage, key: str, draw: random.Random) -> None:
    data = it.take(key)
    keep = draw.choice(
        (0, len(data) - 1, len(data) // 2 // 8 * 8, draw.randrange(max(1, len(data))))
    )
    it.path(key).write_bytes(data[: max(0, keep)])


def lost(it: Damage, key: str, _: random.Random) -> None:
    it.take(key)


def grown(it: Damage, key: str, draw: random.Random) -> None:
    data = it.take(key)
    more = draw.choice((b"\0", bytes(8), data, b"x" * 4097, data[-24:]))
    it.path(key).write_bytes(data + more)


def zeroed(it: Damage, key: str, draw: random.Random) -> None:
    data = it.take(key)
    at = draw.randrange(max(1, len(data))) // 512 * 512
    page = bytes(len(data[at : at + 512]))
    it.path(key).write_bytes(data[:at] + page + data[at + 512 :])


def swapped(it: Damage, key: str, draw: random.Random) -> None:
    other = it.like(key, draw)
    if other is None:
        return lost(it, key, draw)
    mine, theirs = it.take(key), it.take(other)
    it.path(key).write_bytes(theirs)
    it.path(other).write_bytes(mine)
    return None


def replaced(it: Damage, key: str, draw: random.Random) -> None:
    other = it.like(key, draw)
    if other is None:
        return lost(it, key, draw)
    data = it.path(other).read_bytes()
    it.take(key)
    it.path(key).write_bytes(data)
    return None


def linked(it: Damage, key: str, draw: random.Random) -> None:
    it.take(key)
    other = it.like(key, draw) or key + "x"
    secret = it.root.parent / "secret.txt"
    secret.write_text("TOPSECRET" * 100)
    target = draw.choice((it.path(other), secret, Path("/dev/zero"), it.root / "nowhere"))
    it.path(key).symlink_to(target)


def fifo(it: Damage, key: str, _: random.Random) -> None:
    it.take(key)
    os.mkfifo(it.path(key))


def folder(it: Damage, key: str, draw: random.Random) -> None:
    it.take(key)
    it.path(key).mkdir()
    if draw.random() < 0.5:
        (it.path(key) / "x").write_bytes(b"x")


def huge(it: Damage, key: str, draw: random.Random) -> None:
    data = it.take(key)
    with it.path(key).open("wb") as file:
        file.write(data if draw.random() < 0.5 else b"")
        file.truncate(64 << 30)


def forged(it: Damage, key: str, draw: random.Random) -> None:
    """A control record with one value changed and its checksum made right, bound to its place."""
    data = it.take(key)
    payload = data[16:]
    changed = payload
    while changed == payload:
        changed = _tree(payload, draw)
    head = struct.pack("<4sHHI", *struct.unpack_from("<4sHH", data), len(changed))
    crc = zlib.crc32(changed, zlib.crc32(head)) ^ zlib.crc32(key.encode())
    it.path(key).write_bytes(head + struct.pack("<I", crc) + changed)


KINDS: dict[str, Callable[[Damage, str, random.Random], None]] = {
    one.__name__: one
    for one in (flips, cut, lost, grown, zeroed, swapped, replaced, linked, fifo, folder, huge)
}


FORGED = "forged"


def copy_of(store: Store, to: Path) -> Damage:
    """Return a copy of a store, of hard links: whoever damages an object unlinks it first."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(store.root, to, copy_function=os.link)
    return Damage(to, tuple(store.keys()))


def harm(it: Damage, how: str, draw: random.Random) -> None:
    """Damage one object; the kinds of objects are equally likely."""
    kinds = sorted({kind_of(key) for key in it.keys})
    if how == FORGED:
        kinds = [kind for kind in kinds if kind.startswith("slot")]
    kind = draw.choice(kinds)
    key = draw.choice([k for k in it.keys if kind_of(k) == kind])
    (forged if how == FORGED else KINDS[how])(it, key, draw)
    it.what = f"{how}: {', '.join(it.damaged)}"
