"""Pipelines: sources and consumers that run side by side, connected by durable data alone.

`pipeline.py` is what users write, `client.py` operates a pipeline from another process, `status.py`
reads how it is. The folders, each of which may import those behind it and `recovery/job/`:
`coordinator/` runs a pipeline; `lines/` are processes, threads and the storage between it and its
tasks; `task/` is what a task runs; `plan/` is what a pipeline consists of; `commands/` is what is
asked for, and what tasks are told.

Start reading in `pipeline.py`; for a row's way in `task/source.py`, then `task/consumer.py`; for a
command's way in `client.py`, then `coordinator/control.py`.
"""
