"""Where bytes are kept: one contract, its backends, and the layers around a backend.

`contract.py` says what a backend must do; `memory.py` is its meaning in a dictionary. Backends:
`local.py`, `fsspec_backend.py` (S3, GCS, Azure and others; `exclusive_create.py` has a row for
each), plug-ins. `open.py` picks one for a URL and puts `retrying.py` around it, the only loop that
repeats a storage call. Imports `base/`. Start in `contract.py`.
"""
