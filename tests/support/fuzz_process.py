"""The process in which decoders are fuzzed: a crash of it is a finding.

    fuzz_process.py FOLDER SEED COUNT [--coverage] [--targets NAME ...]

Every input is written to FOLDER/input before it is decoded, so that a process which dies leaves
what killed it. Failures are written to FOLDER/failures, one file each, with the traceback. Inputs
come from a mutator that knows integers, spans and msgpack; with --coverage from libFuzzer by way of
atheris, which keeps what reaches new code, and from the same mutator. The last line of the output
says how many inputs were decoded.

The process may take MEMORY bytes more than it has at the start: a decoder that runs into this limit
took more than its input lets it, also if it turned the MemoryError into one of its own.
"""

import argparse
import contextlib
import mmap
import random
import resource
import struct
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack

MEMORY = 256 << 20
MAX_INPUT = 1 << 15
_NUMBERS = (0, 1, -1, 2, 7, 8, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
_NUMBERS = (*_NUMBERS, 2**33, 2**62, 2**63 - 1, -(2**31), -(2**63))
_VALUES = (None, True, 0, 1, -1, 2**32, 2**63, 2**64 - 1, -(2**63), 0.5, float("nan"), "", "a")
_VALUES = (*_VALUES, "\ud7ff" * 9, "..", b"", b"\0" * 33, [], {}, [[]], {"": 0})


def mutated(data: bytes, other: bytes, draw: random.Random, *, tree: bool) -> bytes:
    """Return the input changed in one to four places."""
    for _ in range(1 + int(draw.random() * 4) if draw.random() < 0.5 else 1):
        data = _tree(data, draw) if tree and draw.random() < 0.7 else _bytes(data, other, draw)
    return data[:MAX_INPUT]


def _bytes(data: bytes, other: bytes, draw: random.Random) -> bytes:
    size, way = len(data), draw.randrange(8)
    if not size:
        return bytes([draw.randrange(256)])
    at = int(draw.random() * size)
    if way == 0:
        return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]
    if way == 1:
        return data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
    if way in (2, 3, 4):  # a number in its place; 8 bytes twice as often: lengths and offsets
        wide = (2, 4, 8)[way - 2]
        at -= at % wide if draw.random() < 0.7 else 0
        value = draw.choice(_NUMBERS) + draw.choice((0, 0, 0, size, -size))
        if draw.random() < 0.4 and at + wide <= size:
            value = int.from_bytes(data[at : at + wide], "little") + draw.randrange(-9, 10)
        packed = (value % (1 << 8 * wide)).to_bytes(wide, "little")
        return data[:at] + packed + data[at + wide :]
    span = 1 + draw.randrange(1 + min(size, 64))
    if way == 5:
        return data[:at] + data[at + span :]
    if way == 6:
        return data[:at] + data[at : at + span] * draw.choice((2, 2, 9)) + data[at + span :]
    start = draw.randrange(1 + len(other))
    return data[:at] + other[start : start + span] + data[at + span :]


def _tree(data: bytes, draw: random.Random) -> bytes:
    """Return msgpack with one value changed, left out, doubled or exchanged."""
    try:
        root = msgpack.unpackb(data, strict_map_key=False, raw=False)
        places = list(_places(root))
        if not places:
            return data
        holder, key = draw.choice(places)
        way, value = draw.randrange(6), holder[key]
        if way == 0:
            del holder[key]
        elif way == 1:
            holder[key] = draw.choice(_VALUES)
        elif way == 2:
            where, what = draw.choice(places)
            holder[key] = where[what]
        elif isinstance(value, bytes):
            holder[key] = _bytes(value, data, draw)
        elif isinstance(value, bool | None | float):
            holder[key] = not value
        elif isinstance(value, int):
            holder[key] = draw.choice((value + 1, value - 1, draw.choice(_NUMBERS)))
        elif isinstance(value, str):
            holder[key] = draw.choice((value + "x", value[1:], value.upper(), "../" + value))
        elif isinstance(value, list):
            value.extend(value[:2] or [0])
        else:
            value["unknown"] = 1
        packed: bytes = msgpack.packb(root)
    except Exception:  # noqa: BLE001 what cannot be changed as a tree is changed as bytes
        return _bytes(data, data, draw)
    return packed


def _places(value: Any) -> Any:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, inner in items:
        yield value, key
        yield from _places(inner)


class Judge:
    """Runs inputs and keeps what must not happen."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        from fuzz_targets import targets

        every = targets()
        self.targets = [
            (name, every[name])
            for name in names or sorted(every)
            if names or not name.startswith("self-test")
        ]
        self.folder, self.ran, self.parsed = folder, 0, 0
        self._failures: set[str] = set()
        (folder / "failures").mkdir(parents=True, exist_ok=True)
        with (folder / "input").open("w+b") as file:
            file.truncate(MAX_INPUT + 64)
            self._shown = mmap.mmap(file.fileno(), MAX_INPUT + 64)

    @property
    def failed(self) -> int:
        return len(self._failures)

    def run(self, number: int, data: bytes) -> None:
        """Decode one input."""
        name, target = self.targets[number]
        head = struct.pack("<II", number, len(data))
        self._shown[: 8 + len(data)] = head + data
        self.ran += 1
        try:
            target.run(data)
        except target.allowed as error:
            if isinstance(error.__cause__, MemoryError):
                self._keep(name, data, error)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self._keep(name, data, error)
        else:
            self.parsed += 1

    def _keep(self, name: str, data: bytes, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{name}: {type(error).__name__} at {frames[-1].filename}:{frames[-1].lineno}"
        if place in self._failures or len(self._failures) > 50:
            return
        self._failures.add(place)
        text = "".join(traceback.format_exception(error, limit=-6))[-3000:]
        path = self.folder / "failures" / f"{len(self._failures):03d}.txt"
        path.write_text(f"{place}\n{text}\ninput {data.hex()}\n")


def plain(judge: Judge, seed: int, count: int) -> Iterator[int]:
    """Mutate seeds, and what was parsed of their descendants, without feedback.

    Yields the number of inputs now and then.
    """
    draw = random.Random(seed)
    pools = [list(target.seeds) for _, target in judge.targets]
    for n in range(1, count + 1):
        number = int(draw.random() * len(pools))
        pool, target = pools[number], judge.targets[number][1]
        before = judge.parsed
        data = mutated(draw.choice(pool), draw.choice(pool), draw, tree=target.tree)
        judge.run(number, data)
        if judge.parsed > before and draw.random() < 0.05:  # still well-formed: goes on from there
            if len(pool) < 4 * len(target.seeds) + 50:
                pool.append(data)
            else:
                pool[len(target.seeds) + draw.randrange(len(pool) - len(target.seeds))] = data
        if n % 100_000 == 0:
            yield n


def covered(judge: Judge, seed: int, count: int, atheris: Any) -> None:
    """Have libFuzzer keep inputs that reach new code; it ends the process, this never returns."""
    corpus = judge.folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for number, (_, target) in enumerate(judge.targets):
        for n, data in enumerate(target.seeds):
            (corpus / f"{number}-{n}").write_bytes(bytes([number]) + data)

    def change(data: bytes, most: int, drawn: int) -> bytes:
        draw = random.Random(drawn)
        if len(data) < 2 or draw.random() < 0.3:
            return bytes(atheris.Mutate(data, most))
        number = data[0] % len(judge.targets)
        target = judge.targets[number][1]
        body = mutated(data[1:], draw.choice(target.seeds), draw, tree=target.tree)
        return (data[:1] + body)[:most]

    started = time.monotonic()

    def one(data: bytes) -> None:
        if data and len(data) <= MAX_INPUT:
            judge.run(data[0] % len(judge.targets), data[1:])
        else:
            judge.ran += 1
        if judge.ran % 100_000 == 0:
            say(judge, started)

    options = [f"-runs={count}", f"-seed={seed % 2**31}", f"-max_len={MAX_INPUT}", "-timeout=60"]
    options += ["-rss_limit_mb=4096", "-print_final_stats=1", "-verbosity=1"]
    options += [f"-artifact_prefix={judge.folder}/crash-", str(corpus)]
    atheris.Setup([sys.argv[0], *options], one, custom_mutator=change)
    atheris.Fuzz()


def say(judge: Judge, started: float) -> None:
    """Print the figures."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    sys.stdout.write(
        f"inputs={judge.ran} parsed={judge.parsed} failures={judge.failed} peak_mib={peak} "
        f"seconds={time.monotonic() - started:.0f}\n"
    )
    sys.stdout.flush()


def limit_memory() -> None:
    """Let the process take no more than MEMORY from here on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main() -> int:
    """Fuzz; exit status 1 if anything happened that must not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--targets", nargs="*", default=[])
    options = parser.parse_args()
    if options.coverage:
        import atheris

        with atheris.instrument_imports(include=["durable_shuffle"]), contextlib.suppress(OSError):
            judge = Judge(options.folder, options.targets)
        limit_memory()
        covered(judge, options.seed, options.count, atheris)
        return 0
    judge = Judge(options.folder, options.targets)
    started = time.monotonic()
    limit_memory()
    for _ in plain(judge, options.seed, options.count):
        say(judge, started)  # so that a run that is cut off has figures, too
    say(judge, started)
    return int(judge.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
