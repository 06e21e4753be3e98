"""Runs workloads times faults times peers, and turns what happened into checked figures."""
