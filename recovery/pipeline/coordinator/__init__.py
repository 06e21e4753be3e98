"""Runs a pipeline: carries out what `Job` decides and what is asked for from outside.

`supervisor.py` is the control loop, in one thread; it never waits for storage. `companion.py` is
the thread that does, in order; `logs.py` is what it does, with `stage_work.py` for stages and
consumers. `control.py` carries requests out, `reporter.py` says how the pipeline is, `stop_desk.py`
takes stops of other threads of this process.

May import every other folder of `pipeline/`. Start reading in `supervisor.py`.
"""
