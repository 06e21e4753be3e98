"""Giving space back: what may go, and deleting it.

`retention.py` decides, `stages.py` releases stages, `upto.py` the consumed part of an appended
stage, `cleanup.py` deletes. Garbage collection: `gc_survey.py` looks, `gc.py` decides,
`gc_run.py` deletes. A failure is never a reason to delete. Start in `retention.py`.
"""
