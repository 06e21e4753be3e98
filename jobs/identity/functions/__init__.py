"""Identity of Python functions: their code, and the values that it and its callees reach.

What cannot be digested makes a function unresolved, by name. `user_code.py` has workers prove that
they run the same modules. Start in `identity.py`.
"""
