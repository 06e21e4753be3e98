"""What can be wrong with a storage plug-in is one of our errors and names the plug-in."""

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from durable_shuffle.serialization.errors import ConflictError, InvalidInputError
from durable_shuffle.shuffle.storage import open as storage_opening
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.open import open_backend

FOUND: dict[str, Callable[..., Any]] = {
    "fine": lambda url, options: MemoryStorage(),
    "fails": lambda url, options: 1 / 0,
    "tells": lambda url, options: {}[f"no {url} with {options['secret']}"],
    "ours": lambda url, options: (_ for _ in ()).throw(ConflictError("mine")),
    "odd": lambda url, options: object(),
}


class Point:
    """An installed entry point."""

    dist = None

    def __init__(self, value: str) -> None:
        self.value = value

    def load(self) -> Callable[..., Any]:
        if self.value == "gone":
            raise ModuleNotFoundError("No module named 'gone'")
        return FOUND[self.value]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have these plug-ins for every protocol."""

    def put(*values: str) -> None:
        monkeypatch.setattr(
            storage_opening, "entry_points", lambda group, name: [Point(v) for v in values]
        )

    return put


def test_a_plug_in_serves_its_protocol(install: Callable[..., None]) -> None:
    """Its storage is the backend; registered twice by the same code is once."""
    install("fine", "fine")
    assert isinstance(open_backend("mine://x", {}), MemoryStorage)


@pytest.mark.parametrize("url", ["s3://bucket/x", "/folder", "file:///folder"])
def test_own_protocols_are_not_for_plug_ins(install: Callable[..., None], url: str) -> None:
    """Nobody takes over what is served here."""
    install("odd")
    assert not isinstance(open_backend(url, {}), MemoryStorage)
    assert isinstance(open_backend("s3://bucket/x", {}), FsspecStorage)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (("fine", "odd"), "more than one plug-in"),
        (("fails",), "ZeroDivisionError"),
        (("gone",), "No module named 'gone'"),
        (("odd",), "gives no Storage: missing="),
        (("tells",), "KeyError"),
    ],
    ids=lambda v: "-".join(v) if isinstance(v, tuple) else "",
)
def test_a_bad_plug_in_is_our_error(
    install: Callable[..., None], values: tuple[str, ...], says: str
) -> None:
    """It names the plug-in, and shows no credentials."""
    install(*values)
    with pytest.raises(InvalidInputError, match=says) as caught:
        open_backend("mine://x", {"secret": "hunter-77"})
    assert values[0] in str(caught.value)
    assert "-77" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_its_own_refusals_pass(install: Callable[..., None]) -> None:
    """Errors of ours leave as they are."""
    install("ours")
    with pytest.raises(ConflictError, match="mine"):
        open_backend("mine://x", {})


def test_without_plug_ins_the_protocol_is_refused(install: Callable[..., None]) -> None:
    """As ever: by name, with the reason, and with the way to add one."""
    install()
    with pytest.raises(InvalidInputError, match=r"no exclusive create.*storage plug-in"):
        open_backend("mine://x", {})


def test_real_entry_points_have_what_is_used() -> None:
    """The stand-in above looks like the real thing."""
    assert {"value", "load", "dist"} <= set(dir(EntryPoint("n", "v", "g")))
