"""How attempts are started, and how they and their coordinator hear each other.

`launcher.py` is the contract. `processes.py` runs each attempt in a process of this machine,
`threads.py` in a thread, for tests. `report_log.py` and `storage_line.py` are the line of a task
that shares nothing but the storage with its coordinator; the launcher for Spark in
`jobs/spark_tasks/` uses them.

May import `task/`, `plan/`, `commands/`, `recovery/job/`, `shuffle`, `serialization`. Start reading
in `launcher.py`.
"""
