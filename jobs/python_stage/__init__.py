"""Stages with map and reduce functions in Python; rows stay in Arrow between the two."""
