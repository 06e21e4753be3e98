"""The async operator: it retries each call separately, and neither loses nor doubles a result.

`machine.py` decides: it takes events and returns actions. `elements.py` has the phases of an input,
the queues and the waits. `settings.py` has the options, and the values that survive a restart.
`operator.py` is the shell on asyncio, and `callers.py` makes the calls. `batches.py` runs an
operator for a synchronous caller and applies it to rows: `async_map` and `AsyncStep`.

May import `shuffle` and `serialization`, nothing else of `recovery`. Start reading in
`elements.py`, then `machine.py`.
"""
