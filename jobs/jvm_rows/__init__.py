"""Turns rows into frames and back inside Spark's JVM. Spark compiles the Java source. Classic only.

Start in `kinds.py`: what Python and Java agree on. The README says how the Java code is run.
"""
