"""The kit for authors of storage plug-ins. Shipped, and imported by no product code.

`storage_conformance.py`: the laws of a storage as tests. `faulty_storage.py` and `fault_proxy.py`:
failures above and below a driver library. `s3_server.py`: a real S3 server on loopback.
`pytest_plugin.py`: fixtures, for runs that ask for them. Start at `storage_conformance.py`.
"""
