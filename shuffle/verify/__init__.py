"""Verification: every control record and every byte that the logs commit.

`job.py` verifies a job, `stage.py` a stage; the rules are pure and stand beside what they check.
Findings are values (`report.py`); nothing here changes storage. Imports `consume/` and below.
Start in `job.py`.
"""
