"""Reading: from a position to checked record batches.

`sealed_reader.py` reads a sealed stage without a consumer. For views, a feed (`sealed_feed.py`,
`log_feed.py`) names the next extents, `buffer_queue.py` fetches them, `frame_source.py` and
`batch_source.py` decode them. Imports `seal/`. Start in `sealed_reader.py`.
"""
