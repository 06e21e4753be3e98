"""Storages that fail at random, for runs of whole programs: a share of all calls, half of those
after they took effect. The tries of different tasks fail independently: see `FaultyStorage`.
"""

from collections.abc import Mapping

from durable_shuffle.shuffle.base.limits import check_number
from durable_shuffle.shuffle.storage import open as open_storage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule


def chance_rules(rate: float) -> tuple[Rule, ...]:
    """Return rules by which about a share `rate` of all calls fails, 0 to 1.

    Of the writes that fail, half took effect, a quarter did not and say so, a quarter do not say.
    """
    check_number("rate", rate, at_least=0, at_most=1)
    return (
        Rule("reads", probability=rate / 2),
        Rule("reads", when="after", probability=rate / 2),
        Rule("writes", probability=rate / 4),
        Rule("writes", fault="lost_reply", probability=rate / 4),
        Rule("writes", when="after", fault="lost_reply", probability=rate / 2),
    )


def install(rate: float, seed: int) -> list[FaultyStorage]:
    """Have every storage that this process opens by its URL from now on fail; for tests.

    Returns:
        Those storages, as they are opened.
    """
    opened: list[FaultyStorage] = []
    plain = open_storage.open_backend

    def open_flaky(url: str, options: Mapping[str, object]) -> Storage:
        opened.append(FaultyStorage(plain(url, options), chance_rules(rate), seed=seed, copy=True))
        return opened[-1]

    open_storage.open_backend = open_flaky
    return opened
