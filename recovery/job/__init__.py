"""The job of a pipeline as a state machine: events in, actions out. Pure.

`machine.py` is the machine: one class `Job`. It uses `phases.py` (phases, reports, actions and the
tables of what may follow what), `starts.py` (what is known of each task; the start barrier),
`waves.py` (fewer slots than tasks), `leaving.py` (attempts that an update ends), `restarts.py`
(restart budget, silent tasks) and `ends.py` (the ways to end, step by step).

No clock, no storage, no threads: times are arguments. May import `serialization` and the pure parts
of `shuffle`, nothing else of `recovery`. Start reading in `phases.py`, then `machine.py`.
"""
