"""Read what is stored, for people: jobs, stages, logs and consumers, as values and as text.

The commands (`jobs/cli/`), the pages (`jobs/reports/`) and the benchmarks use it. It imports
`jobs/text.py` and the layers below, and neither commands nor Spark. Start at `names.py`, which
finds the job or stage that a user typed. `summary.py` has one line per stage and consumer,
`details.py` all of one stage, `producer_logs.py` the logs of log producers.
"""
