"""`durable-shuffle demo enrich`: a stream of lookups in processes, or on executors."""
