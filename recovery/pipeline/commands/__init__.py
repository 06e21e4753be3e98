"""The two command planes of a pipeline, as records and folds.

`requests.py` holds requests from outside, one record each, and the state that they add up to.
`orders.py` holds the commands from the coordinator to its tasks, in one order, written by one
`Emitter` (`emitter.py`).

May import `recovery/job/`, the logs of `shuffle`, `serialization`. Start reading in `requests.py`.
Reasons: docs/internals/decisions/004-command-planes.md.
"""
