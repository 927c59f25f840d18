"""Kinds of sources, one file each.

A file in this folder that defines `KIND` is a kind of source: nothing else has to be edited.
Plug-ins may define one, too.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fewgraft.data.build import Item, Source
from fewgraft.data.store import LARGEST_SIZE
from fewgraft.errors import FewgraftError, reading
from fewgraft.plugins import by_name, plugins


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
    own = [importlib.import_module(f"{__name__}.{module}") for module in modules]
    found = [*own, *plugins("sources")]
    return by_name("kinds of sources", [m.KIND for m in found if hasattr(m, "KIND")])


def open_source(kind: str, path: Path, options: SourceOptions) -> Source:
    """Open the source at `path`, which must exist."""
    if not path.exists():
        raise FewgraftError(f"{path} does not exist", "Give an existing path with --from.")
    if options.size is not None and not 8 <= options.size <= LARGEST_SIZE:
        raise FewgraftError(
            f"a size of {options.size} pixels", f"Choose one from 8 to {LARGEST_SIZE}."
        )
    if not 0 <= options.seed < 2**64:
        raise FewgraftError(f"a seed of {options.seed}", "Choose one from 0 to 2⁶⁴ − 1.")
    with reading(path, f"readable {kind} source"):
        source = source_kinds()[kind].open(path, options)
    return replace(source, items=_watched(source))


def _watched(source: Source) -> Iterator[Item]:
    """The items, which are read as they are asked for: what goes wrong then is told as well."""
    with reading(source.where, f"readable {source.kind} source"):
        yield from source.items


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
