"""Sealing: which commits a stage consists of, decided once, and the index that readers use.

`seal.py` wins SEAL; `rewrite.py` changes a sealed stage (COMPACT, REPLACE) by the same rules.
Imports `write/`. Start in `seal.py`.
"""
