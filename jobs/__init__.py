"""Everything that knows Spark: wrapped stages, the command line, ready-made jobs."""
