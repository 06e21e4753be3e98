"""How attempts are started, and how they and their coordinator hear each other.

`launcher.py` is the contract, with an implementation in threads for tests. `processes.py` runs each
attempt in a process of this machine. `storage_line.py` is the line of a task that shares nothing
but the storage with its coordinator; the launcher for Spark in `jobs/spark_tasks/` uses it.

May import `task/`, `plan/`, `commands/`, `recovery/job/`, `shuffle`, `serialization`. Start reading
in `launcher.py`.
"""
