"""Reading: from a position to checked record batches.

`extents.py` says what an extent is and decodes one. `sealed_reader.py` reads a sealed stage without
a consumer. For views, a feed (`feed.py`, `log_feed.py`) names the next extents, `buffer_queue.py`
fetches them, `batch_source.py` decodes them. Imports `seal/`. Start in `sealed_reader.py`.
"""
