"""`durable-shuffle bench chaos`: the queries of TPC-H while executors and drivers die."""
