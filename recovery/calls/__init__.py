"""The async operator: calls that are retried one by one; nothing is lost or doubled.

`machine.py` decides; it takes events and gives actions. `elements.py` has the phases of an input,
the queues and the waits; `settings.py` the options, and what is remembered over a restart.
`operator.py` is the shell on asyncio, `callers.py` makes the calls, `batches.py` runs an operator
for a synchronous caller and applies it to rows: `async_map` and `AsyncStep`.

May import `shuffle` and `serialization`, nothing else of `recovery`. Start reading in
`elements.py`, then `machine.py`.
"""
