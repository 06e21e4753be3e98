"""Distinguishes Python functions within a session if another run cannot recognise them."""

from pyspark.cloudpickle import dumps

from durable_shuffle.jobs.identity.digests import hex_digest
from durable_shuffle.jobs.identity.functions.identity import FunctionIdentity


def opaque_functions(found: FunctionIdentity, function: object) -> tuple[str, ...]:
    """Return a digest of the pickled function if its identity is unresolved, else nothing."""
    if not found.unresolved:
        return ()
    pickled: bytes = dumps(function)  # type: ignore[no-untyped-call]
    return (hex_digest([pickled]),)
