"""From a DataFrame to a stored stage and back.

Python stages, queries and consumers use these modules too. This folder imports `engine/`,
`identity/` and `deploy/`, never its callers. Start at `runner.py`, which takes one stage from the
user's call to the result. `work.py` holds what differs between kinds of stages: the checks, what is
identified, how rows are written and read. `identity.py` fingerprints it. `store.py` decides between
reuse, resume and fresh, and runs what is missing. `report.py` is what the user is told.
"""
