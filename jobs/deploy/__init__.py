"""Sends this package to executors, and checks that they run it and share the storage.

It imports no other folder of `jobs/`. Start at `ship.py`, which sends the package as an archive.
`running_code.py` identifies the code that a process runs; `preflight.py` checks the storage before
the first write, and reaches it through tasks if a Connect client cannot.
"""
