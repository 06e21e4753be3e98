"""What does not count in the identity of functions: each thing is changed, and rows stay equal."""

import sys
from pathlib import Path

import pytest
from excluded_cases import every
from sent_functions import Sent, in_driver, in_worker

from durable_shuffle.jobs.identity.functions.installed import INSTALLERS_NOTES
from durable_shuffle.jobs.identity.functions.name_use import MODULE_NOTES
from durable_shuffle.jobs.identity.functions.sent import INVISIBLE

FUNCTION = "def f(x):\n    return [x + n for n in (1, 2)]\n"
SLOTS = "class K:\n    __slots__ = ('a',)\nk = K()\nk.a = 5\ndef f(x): return x + k.a\n"
CACHED = "import cached\ndef f(x): return x + cached.K().p\n"
HELPER = "import functools\nclass K:\n    @functools.cached_property\n    def p(self): return 4\n"
NOT_SENT = {"lock"} | ({"__firstlineno__"} if sys.version_info < (3, 13) else set())
PLACES = {
    "co_filename": (FUNCTION, (FUNCTION, "elsewhere.py")),
    "co_firstlineno": (FUNCTION, f"\n\n# moved\n{FUNCTION}"),
    "co_linetable": (FUNCTION, FUNCTION.replace("[x", "[  # wider\n\n        x")),
    "class_tracker_id": (SLOTS, SLOTS),
    "__slotnames__": (SLOTS, f"{SLOTS}import copy\ncopy.copy(k)\n"),
    "__firstlineno__": (SLOTS, f"\n\n# moved\n{SLOTS}"),
    "lock": (CACHED, f"{CACHED}import threading\ncached.K.p.lock = threading.RLock()\n"),
}
NOTES = {
    "__builtins__": "dict(vars(__import__('builtins')))",
    "__cached__": "'other.pyc'",
    "__file__": "'/other/helper.py'",
    "__loader__": "None",
    "__path__": "['/other']",
    "__spec__": "__import__('copy').copy({}.__spec__)",
}
Shown = tuple[Sent, str]


def run(programs: list[str | tuple[str, str]], folder: Path, path: list[Path]) -> list[Shown]:
    """Return each program's function as it was sent, and what it gives in a worker."""
    sent = in_driver(programs, folder, path=path)
    return list(zip(sent, in_worker(sent, folder, path), strict=True))


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Shown]]:
    folder = tmp_path_factory.mktemp("moved")
    (folder / "cached.py").write_text(HELPER)
    shown = run([text for pair in PLACES.values() for text in pair], folder, [])
    return {name: shown[2 * at :][:2] for at, name in enumerate(PLACES)}


@pytest.mark.parametrize(("name", "case"), every(INVISIBLE, PLACES))
def test_what_workers_do_not_show(
    moved: dict[str, list[Shown]], name: str, case: tuple[object, object]
) -> None:
    """A changed place in the source, id or cache gives other pickled bytes, where it is sent at
    all, but an equal digest and an equal value in a worker."""
    (first, one), (second, two) = moved[name]
    assert (first.pickled != second.pickled) == (name not in NOT_SENT) or case[0] == SLOTS
    assert (first.digest, first.unresolved) == (second.digest, ())
    assert one == two
    assert "Error" not in one


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Shown]]:
    folder = tmp_path_factory.mktemp("noted")
    programs: list[str | tuple[str, str]] = []
    for at, (name, text) in enumerate(NOTES.items()):
        (folder / f"helper{at}.py").write_text("RATE = 4\n")
        plain = f"import helper{at} as h\nN = 'RATE'\ndef f(x): return x * getattr(h, N)\n"
        programs += [plain, f"{plain}h.{name} = {text.format('h')}\n"]
    shown = run(programs, folder, [])
    return {name: shown[2 * at :][:2] for at, name in enumerate(NOTES)}


@pytest.mark.parametrize(("name", "case"), every(MODULE_NOTES, NOTES))
def test_notes_of_the_import_system(noted: dict[str, list[Shown]], name: str, case: str) -> None:
    """What the import system notes on a module differs between folders; workers make their own."""
    (plain, one), (changed, two) = noted[name]
    assert (changed.digest, changed.unresolved) == (plain.digest, ()), case
    assert one == two == "12"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Shown]]:
    """Three installations of one distribution per note; the third differs in another file."""
    folder = tmp_path_factory.mktemp("installed")
    found: dict[str, list[Shown]] = {one.name: [] for one in INSTALLERS_NOTES}
    for site, content in (("a", "one"), ("b", "two"), ("c", "two")):
        programs: list[str | tuple[str, str]] = []
        for at, note in enumerate(found):
            thing, file = f"thing{at}", note if site != "c" else "other"
            info = folder / site / f"{thing}-1.0.dist-info"
            info.mkdir(parents=True)
            (folder / site / f"{thing}.py").write_text("RATE = 4\n")
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {thing}\nVersion: 1.0\n")
            (info / file).write_text(content)
            record = f"{thing}.py,sha256=x,9\n{info.name}/{file},sha256={content},3\n"
            (info / "RECORD").write_text(f"{record}{info.name}/RECORD,,\n")
            programs.append(f"import {thing} as t\ndef f(x): return x * t.RATE\n")
        for note, shown in zip(found, run(programs, folder, [folder / site]), strict=True):
            found[note].append(shown)
    return found


@pytest.mark.parametrize(
    ("name", "case"), every(INSTALLERS_NOTES, {one.name: "" for one in INSTALLERS_NOTES})
)
def test_notes_of_installers(installed: dict[str, list[Shown]], name: str, case: str) -> None:
    """Two installations of one archive differ in the installer's notes and in nothing a row shows;
    another file beside the notes counts."""
    (first, one), (second, two), (other, _) = installed[name]
    assert first.unresolved == second.unresolved == other.unresolved == (), case
    assert first.digest == second.digest != other.digest
    assert one == two == "12"
