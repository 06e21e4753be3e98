"""Verification: every control record and every byte that the logs commit.

`job.py` verifies a job with its consumers, and `stage.py` a stage: `index.py` checks COMMITs, the
index and compactions, `segment.py` reads the data, `ends.py` looks for lost records. Findings are
values (`report.py`); nothing here changes storage. Imports `consume/` and below. Start in `job.py`.
"""
