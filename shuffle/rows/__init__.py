"""Rows outside of Spark: which partition a row belongs to, sorting and grouping beyond memory.

`spark_hash.py` and `murmur3.py` compute Spark's own hash. `external_sort.py` and `reducers.py` are
for Python stages. Imports `base/`.
"""
