"""The code inside a task: one attempt at a source or a consumer.

`run_task.py` finds the source or consumer of a task in a plan. `source.py` follows a source and
appends its rows. `consumer.py` reads, calls the step and commits; it uses `commits.py` (parts in
order; park, win a record, publish) and `markers.py`. `link.py` connects the task to its
coordinator. `watch.py` notices user code that does not return.

May import `plan/`, `commands/`, `recovery/job/`, `shuffle`, `serialization`. Start reading in
`consumer.py`.
"""
