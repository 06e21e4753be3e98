"""Spark: one interface with two engines, classic and Connect, and how rows reach Python.

`engine.py` is the interface, `choice.py` picks one. `catalyst.py` touches Spark's JVM. `tasks.py`
runs in a Python worker; `row_numbers.py` holds its rows against Spark's count. Imports
`deploy/` and `identity/`. Start in `engine.py`.
"""
