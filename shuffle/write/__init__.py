"""Writing: from record batches to segments, and to the one record that makes them count.

A batch producer (`producer.py`) wins one COMMIT. An appender
(`log_producer.py`; `run_log.py` for streaming queries and write jobs) wins one record per append.
`segments.py` makes the bytes. Imports `log/`, `rows/`. Start in `producer.py`.
"""
