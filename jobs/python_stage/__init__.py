"""Stages whose map and reduce functions are Python: rows stay in Arrow from one to the other."""
