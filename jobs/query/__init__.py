"""Whole queries with every shuffle exchange durable.

`calls.py` has the calls of `DurableShuffle`. `runner.py` runs a query: it plans it
(`planned_query.py`), cuts it (`cuts.py`), and stores the cuts that are needed. Other files know
Catalyst's physical side: `tree.py` reads and rebuilds a plan, `piece_walk.py` and
`cut_identity.py` identify a piece. `jobs/transparent/` sends a program's actions through queries.
"""
