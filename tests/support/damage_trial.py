"""One trial of the corruption campaign: harm one object, then do all that users do.

    damage_trial.py FOLDER SEED FIRST COUNT [HARM,…]

Builds a store, then runs trials FIRST to FIRST + COUNT. Each trial runs in a forked child with a
limit on memory and time, on a copy of the store; what must not happen is printed as one JSON line.
"""

import json
import os
import random
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import damaged_stores
import typer.testing
from damaged_stores import (
    FORGED,
    KINDS,
    STAGE_SLOT,
    Damage,
    Rows,
    Store,
    copy_of,
    harm,
    kind_of,
    unknowable,
)
from stored_job import stored_stage
from typer.testing import CliRunner

from durable_shuffle.jobs.cli.app import app
from durable_shuffle.serialization.errors import DurableShuffleError, InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.named_stage import named_stage
from durable_shuffle.shuffle.storage.open import open_storage

SECONDS, MEMORY = 40, 3 << 30


FOLLOWED, FOLLOW_SECONDS = ("log",), 4
APPENDED = ("log", "open-log", "run")
"""Jobs whose stages grow record by record: nothing but the records says how many there are."""


class Waits(BaseException):
    """A view waits for records that are not there."""


def _waits(*_: object) -> None:
    raise Waits


# putting the commands together takes longer than most of them
typer.testing._get_command = cache(typer.main.get_command)  # type: ignore[attr-defined]


@dataclass
class Trial:
    """What came of one damage."""

    store: Store
    it: Damage
    problems: list[str] = field(default_factory=list)
    wrong_allowed: bool = False
    """Forged records may tell lies that nobody can find; nothing may break all the same."""

    @property
    def url(self) -> str:
        return str(self.it.root)

    @cached_property
    def unknowable(self) -> str:
        """Why nobody can notice the damage; "" if somebody must."""
        return unknowable(self.it) if self.it.damaged else ""

    def say(self, what: str) -> None:
        self.problems.append(what)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run one call of the library: errors are its own, and name the object."""
        try:
            yield
        except DurableShuffleError as error:
            text = f"{error} {' '.join(getattr(error, '__notes__', ()))}"
            if isinstance(error, InvalidInputError):
                if not self.wrong_allowed and not self.unknowable:
                    self.say(f"misuse: {name}: {text[:300]}")
            elif not self._named(text):
                self.say(f"unnamed: {name}: {type(error).__name__}: {text[:300]}")
            if "TOPSECRET" in text:
                self.say(f"secret: {name}")
        except Exception as error:  # noqa: BLE001 what is looked for
            self.say(f"foreign: {name}: {type(error).__name__}: {error!s:.300}")

    def _named(self, text: str) -> bool:
        """Whether a text names an object that is damaged, or the log or stage that it is of."""
        places = set()
        for key in self.it.damaged:
            parts = key.split("/")
            places |= {key, "/".join(parts[:-1]), parts[-1]}
            if parts[1] not in ("log", "consumers"):
                places |= {"/".join(parts[:2])}
            places |= {f"job={parts[0]!r}", f"job {parts[0]!r}", f"pipeline {parts[0]!r}"}
        return any(place in text for place in places)

    def rows(self, name: str, job: str, stage: str, read: Callable[[], Rows]) -> None:
        """Rows are right, or there is an error."""
        with self.step(f"{name} of {job}/{stage}"), suppress(Waits):
            found, want = read(), self.store.rows[job][stage]
            self.compare(f"{name} of {job}/{stage}", job, found, want)

    def compare(self, name: str, job: str, found: Rows, want: Rows) -> None:
        """Rows are those that were written; of a log that lost its end, those before it."""
        lost = sum(((want[k] - found.get(k, Counter())).total() for k in want), 0)
        more = sum(((found[k] - want.get(k, Counter())).total() for k in found), 0)
        ends_earlier = job in APPENDED and self.unknowable == "the end of a log" and not more
        if (lost or more) and not self.wrong_allowed and not ends_earlier:
            self.say(f"WRONG: {name}: {lost} rows missing, {more} too many")

    def read_all(self, when: str) -> None:
        """Read every stage by views and by `cat`."""
        for job in self.jobs():
            stages = self.store.rows.get(job, {})
            for stage in stages:
                if (job, stage) not in self.store.open_ended:
                    self.rows(f"{when} view", job, stage, lambda j=job, s=stage: self._view(j, s))
                self._cat(when, job, stage)

    def _view(self, job: str, stage: str) -> Rows:
        if job in FOLLOWED:  # a follower of a log that lost its END waits for it, as it must
            signal.signal(signal.SIGALRM, _waits)
            signal.alarm(FOLLOW_SECONDS)
        try:
            return self._view_all(job, stage)
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)

    def _view_all(self, job: str, stage: str) -> Rows:
        handle, found = named_stage(self.url, job, stage), {}
        for k in range(min(handle.describe.partitions, 64)):
            consumer = f"trial-{RandomIds().new_id()[:8]}"
            with open_view(handle, k, consumer=consumer, wait_seconds=0.2) as view:
                found[k] = Counter(n for b in view for n in b.column(0).to_pylist())
        return found

    def _cat(self, when: str, job: str, stage: str) -> None:
        code, out = self.cli("cat", job, stage, "--format", "jsonl")
        if code == 0:
            got = Counter(next(iter(json.loads(line).values())) for line in out.splitlines())
            want = sum(self.store.rows[job][stage].values(), Counter())
            self.compare(f"{when} cat of {job}/{stage}", job, {0: got}, {0: want})

    def cli(self, command: str, *arguments: str) -> tuple[int, str]:
        """Call a command; errors are told in one line, and never as misuse or as a defect."""
        words = command.split()
        result = CliRunner().invoke(app, [*words, self.url, *arguments])
        text = result.output
        where = f"{command} {' '.join(arguments)}"
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            self.say(f"foreign: {where}: {result.exception!r:.300}")
        if "this is a defect" in text or "Traceback" in text:
            self.say(f"defect: {where}: {result.stderr[-400:]}")
        if result.exit_code == 2 and not self.wrong_allowed and not self.unknowable:
            self.say(f"misuse: {where}: {result.stderr[-300:]}")
        elif result.exit_code == 1 and "error:" in result.stderr and not self._named(text):
            self.say(f"unnamed: {where}: {result.stderr[-300:]}")
        if "TOPSECRET" in text:
            self.say(f"secret: {where}")
        return result.exit_code, result.stdout

    def jobs(self) -> list[str]:
        """Return the jobs whose objects are damaged; of an intact store all."""
        keys = self.it.damaged or self.it.keys
        return sorted({key.split("/")[0] for key in keys})

    def verify(self) -> None:
        """Each damaged object is named."""
        for job in self.jobs():
            code, out = self.cli("verify", job, "--json")
            try:
                found = {one["key"] for one in json.loads(out)["jobs"][0]["findings"]}
            except (ValueError, KeyError, IndexError):
                found = set()
                if code == 0:
                    self.say(f"verify said {out[:200]}")
            mine = [key for key in self.it.damaged if key.split("/")[0] == job]
            if code == 0 and not self.wrong_allowed:
                self.say(f"MISS: verify finds nothing in {mine}") if not self.unknowable else None
            elif code == 1 and out.startswith("{") and '"error"' not in out[:20]:
                places = {k for key in mine for k in (key, key.rsplit("/", 1)[0] + "/")}
                if self.unknowable:  # then what the records before it name is named
                    stages = {k.rpartition("log/")[0] for k in mine if kind_of(k) == STAGE_SLOT}
                    places |= {f for f in found if f.startswith((*places, *stages))}
                if not places & found and not self.wrong_allowed:
                    self.say(f"MISS: verify names {sorted(found)[:3]} and not {mine}")


def trial(store: Store, folder: Path, how: str, draw: random.Random) -> tuple[str, list[str]]:
    """Return what was done and what must not have happened."""
    it = copy_of(store, folder / "copy")
    harm(it, how, draw)
    if not it.damaged:
        return "nothing", ["nothing was damaged"]
    this = Trial(store, it, wrong_allowed=how == FORGED)
    unchanged = all(
        (p := it.path(k)).is_file() and not p.is_symlink() and p.stat().st_size < 1 << 24
        and p.read_bytes() == it.before[k]
        for k in it.damaged
    )  # fmt: skip
    if unchanged:
        return f"{it.what} (no change)", []
    this.verify()
    this.read_all("damaged")
    for job in this.jobs():
        for command in ("ls", "inspect", "gc"):
            this.cli(command, job)
        this.cli("release", job, "--dry-run")
        if job == "copying":
            this.cli("pipeline status", job)
    second_part(this, folder, how, draw)
    return it.what, this.problems


def second_part(this: Trial, folder: Path, how: str, draw: random.Random) -> None:
    """Collect garbage and bring the objects back; or repair; or run the job."""
    way = draw.choice(("gc", "repair", "run"))
    it, _store = this.it, this.store
    if way == "gc":
        for job in this.jobs():
            this.cli("gc", job, "--delete", "--older-than", "0s")
        it.undo()
        before, this.problems = this.problems, []
        this.wrong_allowed = False
        this.read_all("restored")
        this.problems = before + [
            f"after gc --delete and restoring: {one}" for one in this.problems
        ]
    elif way == "repair":
        for job in this.jobs():
            code, _ = this.cli("verify", job, "--repair")
            again, _ = this.cli("verify", job)
            if code == 0 and again != 0:
                this.say(f"repair of {job} ends with 0, verify behind it with {again}")
        this.read_all("repaired")
    else:
        for job in this.jobs():
            with this.step(f"run of {job}"):
                storage = open_storage(this.url, {})
                log = JobLog.claim(storage, job, RandomIds().new_id())
                stage = stored_stage(
                    log,
                    storage,
                    job=job,
                    name="new",
                    rows=(9,),
                    partitions=1,
                    used_partitions=1,
                    settings=Settings(),
                )
                with open_view(named_stage(this.url, job, "new"), 0, consumer="new") as view:
                    if sum(batch.num_rows for batch in view) != 9:
                        this.say(f"WRONG: new stage {stage.path.folder}")


def in_child(run: Callable[[], Any]) -> tuple[Any, str]:
    """Return what `run` gave in a forked process, and how that ended if it did not end well."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(read)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            answer = run()
            with os.fdopen(write, "w") as file:
                json.dump(answer, file)
            code = 0
        except BaseException as error:  # noqa: BLE001 the parent is told
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return None, "hung" if number == signal.SIGALRM else f"killed by signal {number}"
    return (json.loads(text), "") if text else (None, f"ended with {os.WEXITSTATUS(status)}")


def build(folder: Path, seed: int) -> Store:
    """Build the store in a child: a process that forks trials has no threads of its own."""
    (folder / "data").mkdir(parents=True, exist_ok=True)

    def make() -> Any:
        made = damaged_stores.build(folder / "data", seed)
        rows = {
            j: {s: {k: list(c.elements()) for k, c in p.items()} for s, p in x.items()}
            for j, x in made.rows.items()
        }
        return rows, sorted(made.open_ended)

    found, bad = in_child(make)
    assert not bad, bad
    rows, open_ended = found
    return Store(
        folder / "data",
        {
            j: {s: {int(k): Counter(v) for k, v in p.items()} for s, p in x.items()}
            for j, x in rows.items()
        },
        {tuple(one) for one in open_ended},
    )


def run(folder: Path, seed: int, first: int, count: int, how: str = "") -> Iterator[dict[str, Any]]:
    """Yield one line per trial."""
    store = build(folder, seed)
    ways = how.split(",") if how else sorted(KINDS)
    clean, bad = in_child(lambda: intact(store, folder))
    yield {"trial": -1, "what": "intact", "problems": [bad] if bad else clean}
    for n in range(first, first + count):
        draw = random.Random(f"{seed} {n}")
        chosen = ways[n % len(ways)]
        answer, bad = in_child(lambda c=chosen, d=draw: trial(store, folder, c, d))
        if bad:
            again = random.Random(f"{seed} {n}")
            it = copy_of(store, folder / "copy")
            harm(it, chosen, again)
            answer = it.what, [bad]
        yield {"trial": n, "what": answer[0], "kind": kind(answer[0]), "problems": answer[1]}


def kind(what: str) -> str:
    keys = what.partition(": ")[2].split(" ")[0].rstrip(",")
    return kind_of(keys) if "/" in keys else ""


def intact(store: Store, folder: Path) -> list[str]:
    """Without damage all of it is right: what the trials find is the damage's."""
    this = Trial(store, copy_of(store, folder / "copy"))
    this.read_all("intact")
    for job in store.rows:
        for command in (("verify", job), ("ls", job), ("inspect", job), ("gc", job)):
            code, out = this.cli(*command)
            if code:
                this.say(f"{command} ends with {code}: {out[-300:]}")
    return this.problems


if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    FOLDER.mkdir(parents=True, exist_ok=True)
    for one in run(FOLDER, int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), *sys.argv[5:]):
        sys.stdout.write(json.dumps(one) + "\n")
        sys.stdout.flush()
