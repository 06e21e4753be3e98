"""`DurableShuffle.consume`: a Python function over stored rows that resumes inside its partition.

Stores nothing of its own kind: the stage is one of `jobs/stages/`, the loop one of a task. Start at
`run.py` in the driver; `task.py` is what a Spark task does, with the user's function in it.
"""
