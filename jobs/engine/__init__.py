"""Spark behind one interface with two engines, classic and Connect; and how rows reach Python.

`engine.py` is the interface. `catalyst.py` touches Spark's JVM. `tasks.py` runs in Python workers;
`row_numbers.py` compares their rows with Spark's count. Imports `jvm_rows/`, `deploy/` and
`identity/`. Start in `engine.py`.
"""
