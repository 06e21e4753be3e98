"""What a pipeline consists of: values, the user's parts, and the stages on the storage.

`plan.py` holds the plan, its settings and its stages, and names its tasks. `sources.py` defines
where rows come from, `sinks.py` where they go, and `rows.py` what user functions may return.
`updates.py` imports a plan by name and compares it with another.

May import `commands/` (a description), `recovery/job/`, `shuffle`, `serialization`.
Start reading in `plan.py`.
"""
