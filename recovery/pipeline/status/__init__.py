"""How a pipeline is, for people: nothing is decided by it.

`frontiers.py` says how far parts are and how far behind, `reporter.py` gathers what is new,
`records.py` are the records of the status log and what they add up to, `view.py` reads all of it
from the storage, without a coordinator.

May import `plan/`, `recovery/job/`, `shuffle`, `serialization`. Start reading in `records.py`.
"""
