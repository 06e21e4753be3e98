"""Reading what is stored, for people: jobs, stages, producers' logs and consumers, as values and
as text.

The commands (`jobs/cli/`), the pages (`jobs/reports/`) and the benchmarks are made of it. It
imports `jobs/text.py` and the layers below, and neither commands nor Spark. Start at `names.py`:
from what a user typed to a job or a stage.
"""
