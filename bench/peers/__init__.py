"""What workloads run on: durable shuffles, Spark's own, checkpoints, Parquet, Dask, Celeborn."""
