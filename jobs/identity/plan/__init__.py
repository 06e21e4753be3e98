"""Identity of a plan: a digest of operators, expressions, inputs and settings, equal in every run.

`identity.py` is for classic Spark, `connect.py` for Spark Connect. `leaves.py` handles what a plan
reads; `catalyst_walk.py` reads any Catalyst tree, `tree_walk.py` the same in fewer calls, by
`mapped.py`, which asks a whole list or tree at once. Imports `identity/functions/`.
"""
