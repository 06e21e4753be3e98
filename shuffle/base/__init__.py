"""What every folder needs: clock and ids, settings, checks of numbers, retry policies, redaction.

It imports nothing from `shuffle/`. Only `clock.py` asks the machine for the time or for randomness.
"""
