"""Changing what is sealed without changing its rows: repair of damage, and compaction.

`stage.py` mends a stage from other copies, or names the producers that must run again;
`job_log.py` enters stages that the job log lost. Imports `seal/`, `read/` and `verify/`.
"""
