"""Rows outside of Spark: find the partition of a row; sort and group rows beyond memory.

`spark_hash.py` and `murmur3.py` compute Spark's own hash. `external_sort.py` and `reducers.py` are
for Python stages. Imports `base/`.
"""
