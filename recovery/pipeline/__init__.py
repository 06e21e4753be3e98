"""Pipelines: the shells around the machines of start, restart and stop."""
