"""`durable-shuffle demo consume`: a consumer process is killed again and again."""
