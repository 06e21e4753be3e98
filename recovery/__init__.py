"""Pure recovery decisions: observed records in, what to do next out. No Spark, no I/O."""
