"""`durable-shuffle demo hop`: two streaming queries with a durable stage between them."""
