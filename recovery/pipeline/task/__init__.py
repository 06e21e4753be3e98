"""What runs inside a task: one attempt at a source or a consumer.

`run_task.py` goes from a plan and a task's name to its source or consumer. `source.py` follows a
source and appends; `consumer.py` reads, calls the step and commits, with `commits.py` (the parts in
order; park, win a record, publish). `link.py` is the task's end of the line to its coordinator.

May import `plan/`, `commands/`, `recovery/job/`, `shuffle`, `serialization`. Start reading in
`consumer.py`.
"""
