"""The data source `durable_shuffle`: stages as sources and sinks of batch and streaming queries.

Start at `source.py`, the class that Spark calls. `reading.py` and `stream_reader.py` read,
`writing.py` writes and makes stages; tasks run parts of all three. `register.py` is for drivers.
"""
