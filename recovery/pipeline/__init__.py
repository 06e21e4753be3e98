"""Pipelines: sources and consumers that run side by side, connected only by durable data.

`pipeline.py` is the users' interface, `client.py` operates a pipeline from another process,
`status.py` reads its status. Each of these folders may import the later ones and `recovery/job/`:
`coordinator/` runs a pipeline; `lines/` holds processes, threads and the storage that connect it to
its tasks; `task/` is the code of a task; `plan/` describes a pipeline; `commands/` holds requests
and the commands to tasks.

Start reading in `pipeline.py`. To follow a row, read `task/source.py`, then `task/consumer.py`; to
follow a command, read `client.py`, then `coordinator/control.py`.
"""
