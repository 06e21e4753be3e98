"""The durable shuffle itself. It knows storage and Arrow, and neither Spark nor pipelines.

The folders follow the way of a row; each may import those above it in this list:

- `base/`: clock, settings, limits, retries, redaction.
- `storage/`: the contract and its backends. `rows/`: partition of a row, sorting, grouping.
- `log/`: the slot log, and the logs of jobs, stages, producers and consumers.
- `write/`: rows become segments; one COMMIT, or one APPEND, makes them count.
- `seal/`: an index and one SEAL make a stage readable.
- `read/`: from a position to record batches.
- `consume/`: views, acknowledgements, outputs.
- `verify/`, `repair/`: what is damaged, what can be mended; compaction.
- `release/`: retention, release, garbage collection.
- `stream/`: what a Spark stream reads.

Start in `log/slot_log.py`, then `write/producer.py`, `seal/seal.py`, `read/sealed_reader.py`.
"""
