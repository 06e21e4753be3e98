"""Everything that depends on Spark.

The folders follow a call; each may import those below it in this list:

- `session.py`: `DurableShuffle`, the entry point.
- `query/`: whole queries, cut at their exchanges. `streaming/`: the data source. `consume/`: rows
  for a Python function that resumes.
- `python_stage/`: stages with Python functions. `spark_tasks/`: tasks of pipelines.
- `stages/`: one stage, from its identity to its SEAL, for all of the above.
- `engine/`: Spark sessions, classic and Connect, and the functions that tasks run.
- `jvm_rows/`: rows encoded and decoded inside Spark's JVM.
- `identity/`: what is compared before a stage is reused. `deploy/`: what executors need.

The command line stands above all: `cli/`, `reports/`, `inspect/`.

Start in `session.py`, then `stages/store.py`, `stages/producer_runs.py`, `engine/classic.py`,
`engine/tasks.py`.
"""
