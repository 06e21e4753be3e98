"""Where bytes are kept: one contract, its backends, and the layers around a backend.

`contract.py` says what a backend must do; `memory.py` is the reference backend, a dictionary. The
other backends are `local.py`, `fsspec_backend.py` (S3, GCS, Azure and others; `exclusive_create.py`
has a row for each) and plug-ins. `open.py` picks a backend for a URL and wraps it in `retrying.py`,
the only loop that repeats a storage call. `errors.py` says what a driver's error means. `check.py`
tries the contract on a live backend; `range_plan.py` joins the requests of readers.
Imports `base/`. Start in `contract.py`.
"""
