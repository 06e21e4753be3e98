"""Logs: every decision is a record in a slot that is created once.

`slot_log.py` is the primitive, `typed_log.py` the one way to read and append: records, a pure fold
and `decide`. `layout.py` names all objects. What records add up to is in `job_log.py` (drivers and
stages), `stage.py` (one stage), `producer_log.py` (which of two attempts counts) and
`appender_log.py` (who appends, and what counts so far). Imports `storage/`. Start in `slot_log.py`.
"""
