"""Identity of a plan on Spark Connect: the client's message, and what the server says.

`message.py` walks the message, `inputs.py` asks the server what the plan reads, `known.py` has the
lists. Imports `identity/plan/`.
"""
