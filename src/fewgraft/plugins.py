"""What other packages and files add: methods, backbones and kinds of data sources.

An installed package names its modules by entry points of the groups `fewgraft.methods`,
`fewgraft.backbones` and `fewgraft.sources`. Files that are not installed are named by the
environment variable FEWGRAFT_PLUGINS. Both are the user's doing: no file that is read, such as a
model's card or a recipe, can name code to be run.
"""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Protocol, TypeVar

from fewgraft.errors import FewgraftError, reading

VARIABLE = "FEWGRAFT_PLUGINS"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


@cache
def plugins(group: str) -> tuple[ModuleType, ...]:
    """Modules for "methods", "backbones" or "sources": of installed packages, then files."""
    found = []
    for entry in metadata.entry_points(group=f"fewgraft.{group}"):
        package = entry.dist.name if entry.dist else entry.module
        where = f"the plug-in '{entry.name}' of {package}"
        with reading(where, "module", f"Mend or remove it: pip uninstall {package}"):
            found.append(_module(entry.load(), where))
    paths = [Path(path) for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
    return (*found, *(module_of(path) for path in paths))


def _module(loaded: object, where: str) -> ModuleType:
    if not isinstance(loaded, ModuleType):
        raise FewgraftError(f"{where} is no module", "Its entry point names one, without a colon.")
    return loaded


def module_of(path: Path) -> ModuleType:
    """A Python file as a module; it is run again once it has changed."""
    if not path.is_file():
        raise FewgraftError(f"there is no file {path}", f"Was it named by {VARIABLE}?")
    return _run(path.resolve(), path.stat().st_mtime_ns)


@cache
def _run(path: Path, changed: int) -> ModuleType:
    del changed
    with reading(path, "Python file that can be run"):
        # Two files of one name must not be taken for each other.
        name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        found = importlib.util.spec_from_file_location(name, path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[name] = module  # dataclasses look their module up
        found.loader.exec_module(module)
        return module


def by_name(what: str, things: Iterable[T]) -> dict[str, T]:
    """Things by their names, of which no two may be the same."""
    found: dict[str, T] = {}
    for thing in things:
        if thing.name in found:
            raise FewgraftError(
                f"two {what} are called '{thing.name}'", "Rename the one of the plug-in."
            )
        found[thing.name] = thing
    return found
