"""Storages through the real drivers of three object stores, against a server on this machine."""

import base64

from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.storage.fsspec_backend import FsspecStorage


def s3(url: str) -> Storage:
    """S3 through s3fs."""
    return FsspecStorage("s3://bucket/x", {"endpoint_url": url, "key": "k", "secret": "s"})


def gcs(url: str) -> Storage:
    """Google Cloud Storage through gcsfs."""
    return FsspecStorage("gs://bucket/x", {"endpoint_url": url, "token": "anon"})


def azure(url: str) -> Storage:
    """Azure Blob Storage through adlfs."""
    key = base64.b64encode(b"0" * 64).decode()
    text = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey={key};BlobEndpoint={url}/a;"
    return FsspecStorage("az://bucket/x", {"connection_string": text})


DRIVERS = {"s3": s3, "gcs": gcs, "azure": azure}
"""By name, what makes a storage from the server's URL."""
