"""Stages as streams: offsets, the rows between two offsets, and the reader's own cursor.

`offset.py` is pure, `scan.py` reads the stage's logs, and rows on an executor, `consumer.py` keeps
the cursor. Start in `offset.py`.
"""
