"""What ships for people who test against durable-shuffle or write a storage of their own."""
