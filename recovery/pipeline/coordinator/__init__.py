"""Runs a pipeline: carries out what `Job` decides and what is asked for from outside.

`supervisor.py` is the control loop, in one thread; it waits for its inbox alone and never for
storage. `inbox.py` has the companion, the thread that works for the loop, in order; `logs.py` is
what it does, with `stage_work.py` for stages and consumers. `control.py` carries requests out,
`reporter.py` says how the pipeline is.

May import every other folder of `pipeline/`. Start reading in `supervisor.py`.
"""
