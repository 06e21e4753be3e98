"""Ready-made jobs that are killed on purpose, and what failures, hand-overs and storage cost.

The commands `durable-shuffle demo` and `durable-shuffle bench` are here (`commands/`), and what
they run: no other part of the package imports it, and executors get it only from drivers that are
its own. `suite/` holds the benchmarks that `make bench` runs with pytest; a wheel leaves it out.
Start at `commands/demo.py`.

| folder | what |
|---|---|
| `cluster/` | a real Spark cluster on this machine, drivers in it, and their kills |
| `tpch/` | TPC-H: data, queries, DuckDB's answers |
| `recovery_demo/`, `chaos/` | `demo` and `bench chaos`: TPC-H while executors and drivers die |
| `consumer_demo/`, `enrich_demo/`, `hop_demo/` | `demo consume`, `demo enrich`, `demo hop` |
| `sessions/` | a job to copy from: clicks to sessions, with a reducer that survives kills |
| `workloads/`, `peers/`, `matrix/` | `bench recovery`, `bench throughput`: what, on what, how |
| `pages/` | their figures as HTML and as pictures |
"""
