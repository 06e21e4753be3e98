"""What every folder needs: clock and ids, settings, checks of numbers, retry policies, redaction.

It imports nothing of `shuffle/`. `clock.py` is the only module that asks the machine for the time
or for chance.
"""
