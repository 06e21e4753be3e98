"""What a pipeline consists of: values, the user's parts, and the stages on the storage.

`plan.py` holds the plan and names its tasks; `settings.py` what users tune; `sources.py` and
`sinks.py` where rows come from and go to; `rows.py` what user functions may return. `changes.py`
compares two plans, `reference.py` imports one by name, `stages.py` finds or makes the stages.

May import `commands/` (a description), `recovery/job/`, `shuffle`, `serialization`.
Start reading in `plan.py`.
"""
