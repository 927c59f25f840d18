"""The one exception that is meant for the user's eyes."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from pathlib import Path


class FewgraftError(Exception):
    """Something the user can mend: what is wrong and, where there is one, what to do.

    The command line prints it without a traceback and exits with code 2.

    Attributes:
        problem: What is wrong.
        hint: What to do; may be empty.

    Example:
        >>> try:
        ...     fewgraft.open_data("icon")
        ... except fewgraft.FewgraftError as error:
        ...     print(error.hint)
        Did you mean 'icons'?
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(f"{problem}\n{hint}" if hint else problem)
        self.problem = problem
        self.hint = hint


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the valid name nearest to `name`, or lists them when none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"Did you mean '{close[0]}'?"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"Known: {shown}" if names else ""


@contextlib.contextmanager
def reading(path: Path | str, what: str = "readable file", hint: str = "") -> Iterator[None]:
    """Every reader reads inside this: whatever goes wrong is a `FewgraftError` that names it.

    Parsers of foreign bytes raise nearly anything, so nearly everything is caught. `what` is what
    the file should have been, such as "readable recipe".
    """
    try:
        yield
    except FewgraftError:
        raise
    except FileNotFoundError:
        raise FewgraftError(f"{path} does not exist", hint) from None
    except OSError as error:
        raise FewgraftError(f"{path} cannot be read: {why(error)}", hint) from None
    except MemoryError:
        raise FewgraftError(f"{path} needs more memory than there is", hint) from None
    except RecursionError:
        raise FewgraftError(f"{path} is not a {what}: it nests too deeply", hint) from None
    except Exception as error:
        raise FewgraftError(f"{path} is not a {what}: {why(error)}", hint) from None


@contextlib.contextmanager
def writing(path: Path | str, hint: str = "") -> Iterator[None]:
    """Every writer writes inside this: a full or read-only disk is a `FewgraftError`."""
    try:
        yield
    except OSError as error:
        raise FewgraftError(f"cannot write {path}: {why(error)}", hint) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # its way to say that the disk is full
            raise
        raise FewgraftError(f"cannot write {path}: {why(error)}", hint) from error


def why(error: BaseException) -> str:
    """The reason in one line: the system's own words where it gave some, else the first line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__
