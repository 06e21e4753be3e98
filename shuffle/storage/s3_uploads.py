"""Unfinished multipart uploads on S3, which a writer leaves behind if it is killed in a large put.

An unfinished upload is no object and no listing shows it, but S3 keeps its parts and charges for
them. Here it is named by its key and its id, `<key>?uploadId=<id>`; no key holds a '?'.
"""

from collections.abc import Iterator
from typing import Any

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.storage.contract import ObjectInfo
from durable_shuffle.shuffle.storage.error_table import error_chain, server_answer

_MARK = "?uploadId="


def unfinished(filesystem: Any, root: str, prefix: str) -> Iterator[ObjectInfo]:
    """Yield the unfinished uploads below `prefix` of `root`; none if the server cannot list them.

    Raises:
        Exception: any error of the driver, not translated.
    """
    bucket, folder, _ = filesystem.split_path(root)
    above = f"{folder}/" if folder else ""
    more: dict[str, str] = {}
    while True:  # ends: every page starts after the one before
        try:
            page = filesystem.call_s3(
                "list_multipart_uploads", Bucket=bucket, Prefix=above + prefix, **more
            )
        except Exception as error:
            if _status(error) == 501:  # a server that has no such request
                return
            raise
        for upload in page.get("Uploads", ()):
            key = upload["Key"].removeprefix(above)
            name = f"{key}{_MARK}{upload['UploadId']}"
            yield ObjectInfo(name, 0, upload["Initiated"].timestamp())
        if not page.get("IsTruncated"):
            return
        more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}


def parse(name: str) -> tuple[str, str]:
    """Return (key, upload id) from a name that `unfinished` yielded.

    Raises:
        InvalidInputError: the name is not of that form.
    """
    key, mark, upload = name.partition(_MARK)
    if not mark or not upload:
        raise InvalidInputError(f"not an unfinished upload: {name!r}")
    return key, upload


def call_off(filesystem: Any, root: str, key: str, upload: str) -> None:
    """Abort an upload, which deletes its parts; a missing upload is fine."""
    bucket, folder, _ = filesystem.split_path(root)
    whole = f"{folder}/{key}" if folder else key
    try:
        filesystem.call_s3("abort_multipart_upload", Bucket=bucket, Key=whole, UploadId=upload)
    except Exception as error:
        if _status(error) != 404:
            raise


def _status(error: Exception) -> int | None:
    answers = (server_answer(link)[1] for link in error_chain(error))
    return next((status for status in answers if status is not None), None)
