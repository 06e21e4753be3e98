"""For people who test against durable-shuffle or write a storage of their own.

Shipped, and imported by no product code: the laws of a storage (`storage_conformance.py`), storages
that fail (`faulty_storage.py`, `flaky_storage.py`), an S3 server, small stored stages and jobs.
pytest gets fixtures if a run asks for `pytest_plugin.py`. Start at `storage_conformance.py`.
"""
