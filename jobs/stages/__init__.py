"""From a DataFrame to a stored stage and back: what is asked for, looked up, run, sealed, reported.

Python stages, queries and consumers store and find theirs here too. It imports the engines' side
(`engine.py`, `tasks.py`, `identity/`, `deploy/`), never who asks. Start at `runner.py`, one stage
from the user's call on: `request.py` checks it, `identity.py` says what it is, `store.py` decides
between reuse, resume and fresh and runs what is missing, `work.py` is what differs between kinds of
stages, `report.py` what the user is told.
"""
