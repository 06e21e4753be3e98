"""A simulated year of nights: bytes, objects and the requests of an opening, as a picture.

On a virtual clock and a storage in memory, with the default retention. Each night opens the job,
reuses one stage, makes three, releases one of these, and runs `gc --delete`.
"""

import random
from typing import Any

import pytest
from document import PICTURES, write_block
from document import table as text_table
from nights import figures_of
from small_stage import SeededIds

from durable_shuffle.shuffle.storage.memory import MemoryStorage

RETENTION = PICTURES.parent / "internals" / "retention.md"
SHOWN = (1, 10, 20, 100, 365)


@pytest.mark.soak
def test_a_year(benchmark: Any, measuring: bool) -> None:
    """All three are flat behind the horizon; 25 nights as a plain test."""
    from durable_shuffle.bench.pages.pictures import year_picture

    nights = 365 if measuring else 25
    storage, ids = MemoryStorage(), SeededIds(random.Random(7))
    figures = benchmark.pedantic(lambda: list(figures_of(storage, ids, nights)), rounds=1)
    size, objects, requests = zip(*figures[20:], strict=True)
    assert max(size) <= 1.2 * min(size)
    assert max(objects) <= 1.1 * min(objects)
    assert max(requests) <= 16
    if measuring:
        picture = year_picture(figures, PICTURES / "year.png")
        rows = [(str(n), *(f"{x:,}" for x in figures[n - 1])) for n in SHOWN]
        head = ("night", "bytes", "objects", "requests to open the job")
        text = f"{text_table(head, rows)}\n\n![a year of nights](../pictures/{picture.name})\n"
        write_block("year", text, RETENTION)
