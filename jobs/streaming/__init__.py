"""The data source `durable_shuffle`: stages as sources and sinks of batch and streaming queries."""
