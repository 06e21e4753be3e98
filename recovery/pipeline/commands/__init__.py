"""The two command planes of a pipeline, as records and folds.

`requests.py`: what somebody outside wants, one record each, and what requests come to. `orders.py`:
what the coordinator tells its tasks, in one order, which one `Emitter` writes.

May import `recovery/job/`, the logs of `shuffle`, `serialization`. Start reading in `requests.py`.
Why so: docs/decisions/004-command-planes.md.
"""
