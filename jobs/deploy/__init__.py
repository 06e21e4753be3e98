"""From this driver to its executors: the code that they run, and whether they share the storage.

It imports no other folder of `jobs/`. Start at `ship.py`: the package's own code as an archive;
`running_code.py` tells whether a task runs the driver's; `preflight.py` looks before the first
write; `remote_storage.py` is for clients that cannot reach the storage themselves.
"""
