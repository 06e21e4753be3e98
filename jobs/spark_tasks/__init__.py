"""Runs the tasks of a pipeline as Spark tasks; `spark_tasks` in `launcher` is the way in."""
