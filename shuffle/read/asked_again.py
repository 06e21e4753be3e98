"""Asks again for an object that a record names and that seems to be missing.

A replica may lag, and a gateway may answer 404 for what is there. This repeats no failed call, as
`RetryingStorage` does: an answer is asked for a second time.
"""

from collections.abc import Callable
from typing import TypeVar

from durable_shuffle.serialization.errors import NotFoundError
from durable_shuffle.shuffle.log.stage import StageHandle, live_state
from durable_shuffle.shuffle.storage.contract import Storage, StorageLayer

T = TypeVar("T")


class AskedAgain(StorageLayer):
    """A storage for reads of objects that must exist.

    Args:
        looks: how often an object is asked for before it counts as missing.
        between: called before each further look, with the number of looks that are left; what it
            raises ends the call.
    """

    def __init__(self, storage: Storage, looks: int, between: Callable[[int], None]) -> None:
        super().__init__(storage)
        self._looks, self._between = looks, between

    def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
        for looks_left in reversed(range(self._looks)):
            try:
                return request()
            except NotFoundError:
                if not looks_left:
                    raise
                self._between(looks_left)
        raise AssertionError  # the last look returns or raises


def data_of(stage: StageHandle) -> Storage:
    """Return the storage of a sealed stage, to read its data from.

    It asks twice for what is missing; before that, it says so if the stage was released.
    """

    def refuse_released(_looks_left: int) -> None:
        live_state(stage)

    return AskedAgain(stage.storage, 2, refuse_released)
