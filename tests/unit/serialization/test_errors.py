"""The error tree: its shape, its codes, and that errors survive a process boundary."""

import pickle

import pytest

from durable_shuffle.serialization import errors
from durable_shuffle.serialization.frame_decoder import TruncatedFrameError

# written out on purpose: a renamed class or code is a change that users notice
TREE = {
    "FencedError": "fenced",
    "ConflictError": "conflict",
    "OutcomeUnknownError": "outcome_unknown",
    "UnavailableError": "unavailable",
    "NotReadyError": "not_ready",
    "AbortedError": "aborted",
    "NotFoundError": "not_found",
    "CorruptDataError": "corrupt_data",
    "InvalidInputError": "invalid_input",
    "IncompatibleError": "incompatible",
}


def test_tree_has_one_root_and_these_classes() -> None:
    """Every error of the module stands directly below the one root."""
    found = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert found == TREE.keys() | {"DurableShuffleError"}
    assert errors.DurableShuffleError.__bases__ == (Exception,)
    for name in TREE:
        assert getattr(errors, name).__bases__ == (errors.DurableShuffleError,)


def test_kinds_are_stable_and_unique() -> None:
    """Each class has its own code, and no code is without a class."""
    assert {name: getattr(errors, name).kind for name in TREE} == TREE
    assert sorted(errors.ErrorKind) == sorted(TREE.values())


def test_tree_is_drawn_in_the_docstring() -> None:
    """The picture at the top of the module names every class."""
    assert errors.__doc__ is not None
    assert [name for name in TREE if f"-- {name}" not in errors.__doc__] == []


@pytest.mark.parametrize("name", sorted(TREE))
def test_errors_can_be_pickled(name: str) -> None:
    """Class, message and code are the same on the other side."""
    error = getattr(errors, name)("stage=a producer=1")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == "stage=a producer=1"
    assert copy.kind == TREE[name]


def test_truncated_frame_is_corrupt_data_and_keeps_its_numbers() -> None:
    """The torn tail is told apart by class, and its byte counts survive pickling."""
    error = TruncatedFrameError("cut", 5, 24)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is TruncatedFrameError
    assert TruncatedFrameError.__bases__ == (errors.CorruptDataError,)
    assert (str(copy), copy.received_bytes, copy.expected_bytes) == ("cut", 5, 24)
    assert copy.kind == "corrupt_data"
