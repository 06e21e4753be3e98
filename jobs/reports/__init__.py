"""`durable-shuffle report`: the life of a job as one self-contained HTML page.

Reads through `jobs/inspect/`; no other part of the API knows it. Start at `job_history.py` (what is
read) and `job_page.py` (what is shown); `timeline.py`, `drawing.py` and `axis.py` draw, and
benchmarks draw with them too.
"""
