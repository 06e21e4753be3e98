"""Consume a stage under a name: views, acknowledgements and outputs.

`open_view.py` fences older views and finds the start; `view.py` hands out batches; `task.py` writes
positions, outputs and state as one record of the consumer's log (`log.py`). Imports `read/`. Start
in `open_view.py`.
"""
