"""Calls into code of the user's: what it raises is told from errors of this library.

Only the place of a call knows whose code it enters. So each such call stands in `user_code()`,
whoever makes it. An error that comes out is a `UserCodeError`, whatever class it has: a user's
`UnavailableError` is no outage of the storage, and a user's `FencedError` is no newer owner.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

_MOST_CHARS = 2000
_CUT = " ... "


class UserCodeError(Exception):
    """Carries what the user's code raised."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


@contextmanager
def user_code() -> Iterator[None]:
    """Raise what the user's code raises as a UserCodeError; interrupts pass as they are."""
    try:
        yield
    except UserCodeError:
        raise
    except Exception as error:
        raise UserCodeError(error) from error


def guarded(made: Iterable[T]) -> Iterator[T]:
    """Yield the items of an iterable of the user's."""
    with user_code():
        yield from made


def own_error(error: BaseException) -> BaseException:
    """Return the error itself, without the wrapper."""
    return error.error if isinstance(error, UserCodeError) else error


def text_of(error: object) -> str:
    """Return what an error, or a cause that user code gave, says with its notes.

    Never raises; the text can be encoded and has at most 2,000 characters.
    """
    error = own_error(error) if isinstance(error, BaseException) else error
    notes = getattr(error, "__notes__", None)
    parts = [error, *(notes if isinstance(notes, list | tuple) else ())]
    text = "; ".join(filter(None, map(_plain, parts))) or type(error).__name__
    if len(text) > _MOST_CHARS:
        half = (_MOST_CHARS - len(_CUT)) // 2
        text = f"{text[:half]}{_CUT}{text[-half:]}"
    return text


def named_text_of(error: BaseException) -> str:
    """Return the class of an error and its text."""
    return f"{type(own_error(error)).__name__}: {text_of(error)}"


def _plain(value: object) -> str:
    try:
        return str(value).encode("utf-8", "backslashreplace").decode()
    except Exception as error:  # noqa: BLE001 - of the user's __str__
        return f"({type(value).__name__} without a text: its __str__ raises {type(error).__name__})"


def users_close(part: object) -> Callable[[], object]:
    """Return a call that closes a part of the user's, if it can be closed."""

    def close() -> None:
        if callable(call := getattr(part, "close", None)):
            with user_code():
                call()

    return close


def close_all(
    closes: Iterable[Callable[[], object]], earlier: BaseException | None = None
) -> BaseException | None:
    """Make every call, in order; return the first error, `earlier` if given.

    Errors behind the first one become its notes.
    """
    for close in closes:
        try:
            close()
        except BaseException as error:  # noqa: BLE001 - the other parts must be closed, too
            if earlier is None:
                earlier = error
            else:
                text = named_text_of(error)
                own_error(earlier).add_note(f"closing failed, too: {text}")
    return earlier


@contextmanager
def closing_all(*closes: Callable[[], object]) -> Iterator[None]:
    """Make these calls behind the body, however it ends; an error of the body stays the error."""
    try:
        yield
    except GeneratorExit:  # the reader left early: nobody would see a note
        if (failed := close_all(closes)) is not None:
            raise failed from None
        raise
    except BaseException as error:
        close_all(closes, error)
        raise
    if (last := close_all(closes)) is not None:
        raise last
