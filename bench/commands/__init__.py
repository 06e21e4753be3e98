"""The commands `durable-shuffle demo` and `durable-shuffle bench`; each imports what it runs."""
