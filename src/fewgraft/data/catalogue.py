"""Data sets by name: the embedded one, and the stores that were added on this machine."""

import os
from pathlib import Path

from fewgraft.data.build import build_store
from fewgraft.data.icons import ICONS, load_icons
from fewgraft.data.sources import SourceOptions, open_source, source_kinds
from fewgraft.data.store import ImageStore, open_store
from fewgraft.errors import FewgraftError, nearest
from fewgraft.files import mend_folder, read_folder
from fewgraft.home import home_folder

LONGEST_NAME = 120  # bytes; file systems allow 255, and work in progress has a longer name


def data_root() -> Path:
    """Where added data sets live: $FEWGRAFT_HOME/data, or the user's own data folder."""
    return home_folder() / "data"


def added_names(root: Path) -> list[str]:
    """Names of the data sets that were added under `root`."""
    if not root.is_dir():
        return []
    stores = root.glob("*/manifest.json")
    return sorted(path.parent.name for path in stores if not path.parent.name.startswith("."))


def open_data(name: str, root: Path | None = None) -> ImageStore:
    """Open a data set by name: "icons", which is in the package, or one that was added.

    Args:
        name: As `fewgraft data list` shows it.
        root: Folder of the data sets; None takes $FEWGRAFT_HOME/data or the user's data folder.

    Returns:
        An `ImageStore`: `pictures` uint8 [n, size, size, channels], `labels` [n], `parts` [n] and
        `classes`, base classes first.

    Raises:
        FewgraftError: There is no such data set, or its files are damaged.

    Example:
        >>> icons = fewgraft.open_data("icons")
        >>> icons.pictures.shape
        (25049, 32, 32, 1)
        >>> len(icons.base_classes), len(icons.classes)
        (108, 210)
    """
    if name == ICONS:
        return load_icons()
    root = root or data_root()
    if _is_name(name):
        mend_folder(root / name)
    names = added_names(root)
    if name in names:
        return read_folder(root / name, open_store)
    hint = nearest(name, [ICONS, *names])
    if name in source_kinds():
        hint = f"Add it first: fewgraft data add {name} --from PATH"
    raise FewgraftError(f"there is no data set '{name}' under {root}", hint)


def add_data(
    name: str,
    path: Path,
    kind: str | None = None,
    options: SourceOptions | None = None,
    *,
    root: Path | None = None,
    strict: bool = False,
) -> ImageStore:
    """Add the pictures at `path` under `name`; the kind is the name where that is a kind."""
    _check_name(name)
    kind = kind or (name if name in source_kinds() else "folder")
    if kind not in source_kinds():
        raise FewgraftError(f"there is no kind of source '{kind}'", nearest(kind, source_kinds()))
    source = open_source(kind, path, options or SourceOptions())
    return build_store(source, (root or data_root()) / name, name, strict=strict)


def _check_name(name: str) -> None:
    if name == ICONS:
        raise FewgraftError(
            f"'{ICONS}' is embedded in the package and needs no adding",
            f"Look at it with: fewgraft data show {ICONS}",
        )
    if not _is_name(name):
        raise FewgraftError(
            f"{name!r} cannot be a name", "Use letters, digits, spaces, dashes and dots."
        )


def _is_name(name: str) -> bool:
    """Whether a folder may have this name: no path, and nothing that some systems refuse."""
    odd = any(c in name for c in '/\\:*?"<>|\n\0') or len(os.fsencode(name)) > LONGEST_NAME
    return bool(name) and not name.startswith((".", "-")) and not odd
