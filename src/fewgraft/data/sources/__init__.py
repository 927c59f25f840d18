"""Kinds of sources, one file each.

A file in this folder that defines `KIND` is a kind of source: nothing else has to be edited.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fewgraft.data.build import Source
from fewgraft.errors import FewgraftError


@dataclass(frozen=True)
class SourceOptions:
    """What a user may say about a source; None leaves it to the kind."""

    size: int | None = None
    grey: bool = False
    split: Path | None = None
    seed: int = 0


@dataclass(frozen=True)
class SourceKind:
    """A kind of source: how to recognise its files in words, and how to open them."""

    name: str
    summary: str
    layout: str
    open: Callable[[Path, SourceOptions], Source]


@cache
def source_kinds() -> dict[str, SourceKind]:
    """All kinds, by name."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [importlib.import_module(f"{__name__}.{module}") for module in modules]
    kinds = [module.KIND for module in found if hasattr(module, "KIND")]
    return {kind.name: kind for kind in kinds}


def open_source(kind: str, path: Path, options: SourceOptions) -> Source:
    """Open the source at `path`, which must exist."""
    if not path.exists():
        raise FewgraftError(f"{path} does not exist", "Give an existing path with --from.")
    if options.size is not None and not 8 <= options.size <= 1024:
        raise FewgraftError(f"a size of {options.size} pixels", "Choose one from 8 to 1024.")
    try:
        return source_kinds()[kind].open(path, options)
    except OSError as error:
        raise FewgraftError(f"{error.filename or path} cannot be read: {error.strerror}") from None


def layout_error(kind: SourceKind, path: Path) -> FewgraftError:
    """The error for a path that does not hold what this kind of source looks like."""
    return FewgraftError(f"{path} does not look like {kind.name}", f"Expected: {kind.layout}")


def refuse_split(kind: SourceKind, options: SourceOptions) -> None:
    """A published data set has published parts."""
    if options.split is not None:
        raise FewgraftError(
            f"{kind.name} comes with its published parts; --split is not for it",
            "To divide it in another way, add it under a name of your own with --kind folder.",
        )
