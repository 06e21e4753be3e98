"""Stage identity: what makes a stage of another run the same stage.

A stage is reused only if everything that decides its rows is equal: the plan, the files and local
rows it reads, the settings that change results, the Python functions with the code they reach, and
the stages below. Each aspect has its own digest, so that a miss can be explained. What cannot be
recognised in another run is named, never ignored: the mistake to avoid is wrong reuse, a needless
fresh stage is only slow.
"""
