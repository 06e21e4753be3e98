"""Release and garbage collection: decide which data may be deleted, and delete it.

`retention.py` registers consumers and decides, `stages.py` releases whole stages, and `upto.py` the
consumed part of an appended stage. In garbage collection, `survey.py` lists, `gc.py` decides, and
`gc_run.py` acts. A failure is never a reason to delete. Start in `retention.py`.
"""
