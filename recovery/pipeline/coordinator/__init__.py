"""Runs a pipeline: carries out the decisions of `Job` and the requests from outside.

`supervisor.py` is the control loop, in one thread; it waits only for its inbox, never for storage.
`inbox.py` has the companion, a thread that does the loop's storage work, in order. `logs.py` is
that work, with `claims.py` for the job log, `stage_work.py` for stages and consumers, and
`drops.py` to end them. `attempts.py` launches, watches and kills attempts. `control.py` carries
requests out, and `reporter.py` reports the pipeline's status.

May import every other folder of `pipeline/`. Start reading in `supervisor.py`.
"""
