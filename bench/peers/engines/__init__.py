"""Engines other than Spark's JVM, one module each: how it is started, and how it runs a workload.

Start reading in `workload.py`. Each module has `engine(work)`, a context manager: it starts the
engine and yields a function from a `Job` to the rows of the answer. `engine_driver.py` calls it.
"""
