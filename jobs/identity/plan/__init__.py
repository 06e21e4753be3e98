"""Identity of a plan: a digest of operators, expressions, inputs and settings, equal in every run.

`identity.py` is for classic Spark. `leaves.py` handles what a plan reads, `catalyst_walk.py` reads
any Catalyst tree, `mixing.py` decides which producers of two runs may meet in one stage. Imports
`identity/tables/`, `identity/jvm/` and `identity/functions/`.
"""
