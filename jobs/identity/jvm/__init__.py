"""The way to Catalyst: calls into the JVM, and a whole plan read as one document.

`calls.py` has the calls, `document.py` with `plan.java` reads a plan in two of them, `deep.py` lets
code follow a plan of any depth. It decides nothing about identity.
"""
