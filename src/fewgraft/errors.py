"""The one exception that is meant for the user's eyes."""

import difflib
from collections.abc import Iterable


class FewgraftError(Exception):
    """Something the user can mend: what is wrong and, where there is one, what to do.

    The command line prints it without a traceback and exits with code 2.
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
