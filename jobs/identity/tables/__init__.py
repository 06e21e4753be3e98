"""Tables whose rows a snapshot names: Delta Lake and Apache Iceberg."""
