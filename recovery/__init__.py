"""What to do after a failure: reuse, resume, restart, retry. Knows no Spark.

`resume.py` decides on a stage that is asked for, `grouping.py` which small partitions one task
reads together, `resumable.py` runs a reducer that goes on after a crash. `program.py` decides
whether a user's program is started again. `job/` decides which tasks
of a pipeline start, restart and stop. `calls/` is the async operator. `pipeline/` runs pipelines.

May import `shuffle` and `serialization`. `job/` and `calls/` know nothing of each other and of
pipelines. Start reading in `resume.py`; for pipelines in `pipeline/__init__.py`.
"""
