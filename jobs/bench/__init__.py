"""Benchmarks as commands: `durable-shuffle bench recovery|throughput|storage`."""
