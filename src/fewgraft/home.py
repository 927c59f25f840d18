"""Where Fewgraft keeps what is its own: data sets, features, the list of work in hand."""

import os
from pathlib import Path

from fewgraft.errors import FewgraftError


def home_folder() -> Path:
    """$FEWGRAFT_HOME, or a folder among the user's own data."""
    home = os.environ.get("FEWGRAFT_HOME")
    share = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    try:
        return Path(home).expanduser() if home else Path(share).expanduser() / "fewgraft"
    except RuntimeError:
        raise FewgraftError(
            "this user has no home folder to keep data in", "Set FEWGRAFT_HOME to a folder."
        ) from None


def imports_root() -> Path:
    """Where imported features are kept."""
    return home_folder() / "imports"
