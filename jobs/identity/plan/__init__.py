"""Identity of a plan: operators, expressions, inputs and settings, equal in every run.

`identity.py` is for classic Spark, `connect.py` for Connect. `leaves.py` says what is read;
`catalyst_walk.py` reads any tree of Catalyst. Imports `identity/functions/`.
"""
