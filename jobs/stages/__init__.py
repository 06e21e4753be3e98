"""From a DataFrame to a stored stage and back.

Python stages, queries and consumers use these modules too. This folder imports `engine/`,
`identity/` and `deploy/`, never its callers. Start at `runner.py`, which takes one stage from the
user's call to the result. `work.py` has the steps that differ between kinds of stages: checks,
identity, writing and reading rows. `identity.py` computes a stage's fingerprint. `store.py` asks
`recovery/resume.py` what to reuse, and runs the missing producers. `report.py` has the reports.
"""
