"""Verification: every control record and every byte that the logs commit.

`job.py` verifies a job and `stage.py` a stage. `commit.py`, `index.py` and `compaction.py` each
check one kind of object. Findings are values (`report.py`); nothing here changes storage. Imports
`consume/` and below. Start in `job.py`.
"""
