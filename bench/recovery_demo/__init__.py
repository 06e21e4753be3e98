"""`durable-shuffle demo`: one job, a killed executor, a killed driver, every row compared."""
