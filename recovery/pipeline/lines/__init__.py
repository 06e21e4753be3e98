"""How attempts are started, and how an attempt and its coordinator communicate.

`launcher.py` is the interface, with an implementation in threads for tests. `processes.py` runs
each attempt in a process of this machine. `storage_line.py` connects a task to its coordinator
through the storage alone; the launcher for Spark in `jobs/spark_tasks/` uses it.

May import `task/`, `plan/`, `commands/`, `recovery/job/`, `shuffle`, `serialization`. Start
reading in `launcher.py`.
"""
