"""Release and garbage collection: decide which data may be deleted, and delete it.

`retention.py` decides, `stages.py` releases whole stages, `upto.py` releases the consumed part of
an appended stage, and `cleanup.py` deletes. In garbage collection, `gc_survey.py` looks, `gc.py`
decides, and `gc_run.py` deletes. A failure is never a reason to delete. Start in `retention.py`.
"""
