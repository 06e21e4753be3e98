"""Stages as streams: offsets, what lies between two of them, and the reader's own cursor.

`offset.py` is pure, `scan.py` looks at the stage, `piece_reader.py` reads on an executor.
Imports all folders above. Start in `offset.py`.
"""
