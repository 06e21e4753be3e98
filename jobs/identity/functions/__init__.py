"""Identity of Python functions: their code, and the values that they and their callees use.

A value that cannot be digested makes the function unresolved; the reason names the value.
`user_code.py` makes workers prove that they run the same modules. Start in `identity.py`.
"""
