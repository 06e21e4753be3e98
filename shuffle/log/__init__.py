"""Logs: every decision is a record in a slot that is created once.

`slot_log.py` is the primitive, `typed_log.py` the one way to read and append: records, a pure fold
and `decide`. `layout.py` names all objects. Records are in `*records.py`; what they add up to is in
`job_log.py` (drivers and stages), `stage.py` with `stage_fold.py`, and `producer_log.py` (which of
two attempts counts). Imports `storage/`. Start in `slot_log.py`.
"""
