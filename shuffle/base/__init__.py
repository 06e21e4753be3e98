"""What every folder needs: clock and ids, settings, checks of numbers, retries, redaction, words.

It imports nothing from `shuffle/`. Only `clock.py` asks the machine for the time or for randomness.
"""
