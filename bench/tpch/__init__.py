"""TPC-H: data, queries, and DuckDB's answers to them."""
