"""Consuming: views, acknowledgements and outputs of a named consumer.

`open_view.py` fences older views and seeks; `view.py` hands out batches; `task.py` writes
positions, outputs and state as one record of the consumer's log (`log.py`). Imports `read/`. Start
in `open_view.py`.
"""
