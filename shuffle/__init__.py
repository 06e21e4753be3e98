"""The durable shuffle itself: storage, slot logs, segments, result partitions, sealed reads."""
