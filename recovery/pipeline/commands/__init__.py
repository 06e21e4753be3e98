"""The two command planes of a pipeline, as records and folds.

`requests.py`: what somebody outside wants, one record each, and what requests come to. `orders.py`:
what the coordinator tells its tasks, in one order. `emitter.py`: the one writer of that order, and
what a new coordinator goes on from.

May import `recovery/job/`, the logs of `shuffle`, `serialization`. Start reading in `requests.py`
and `orders.py`. Why so: docs/decisions/004-command-planes.md.
"""
