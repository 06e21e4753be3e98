"""Change a sealed stage without changing its rows: repair damage, and compact.

`stage.py` mends a stage from other copies, or names the producers that must run again. `job_log.py`
puts back records that the job log lost. `compaction.py` rewrites small extents. Imports `seal/`,
`read/` and `verify/`.
"""
