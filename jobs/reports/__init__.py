"""`durable-shuffle report`: the life of a job as one self-contained HTML page.

It reads through `jobs/inspect/`. Start at `job_history.py` (what is read) and `job_page.py` (what
is shown). `timeline.py` holds bars and marks, `drawing.py` draws them, `page.py` escapes texts and
has the parts of pages; the benchmarks use these three, too.
"""
