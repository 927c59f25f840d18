"""Methods by name, one file per paper.

A file in this folder, or in one below it, that defines `METHODS` adds to the registry: nothing else
has to be edited. Plug-ins add to it, too. A file anywhere else can be used by its path instead of a
name: `mine.py`, or `mine.py:name` where it defines several.

Example:
    >>> "proposed" in fewgraft.methods.methods()
    True
    >>> fewgraft.methods.method_spec("+pr").title
    'Meta-Inc-Baseline + PR'
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fewgraft.errors import FewgraftError, nearest
from fewgraft.methods.base import MethodSpec
from fewgraft.methods.beside_base import beside_base
from fewgraft.plugins import by_name, module_of, plugins

SUFFIX = ".py"


@cache
def methods() -> Mapping[str, MethodSpec]:
    """All methods by name, in the order in which tables list them.

    Returns:
        A `MethodSpec` per name.
    """
    modules = sorted(module.name for module in pkgutil.walk_packages(__path__, f"{__name__}."))
    found = [*map(importlib.import_module, modules), *plugins("methods")]
    specs = [spec for module in found for spec in getattr(module, "METHODS", ())]
    specs += beside_base(specs)
    return by_name("methods", sorted(specs, key=lambda spec: (spec.rank, spec.name)))


def method_spec(name: str) -> MethodSpec:
    """The method of that name or in that file.

    Args:
        name: Of a method, or of a Python file that defines one; FILE.py:NAME for one of several.

    Returns:
        A `MethodSpec`.

    Raises:
        FewgraftError: There is no such method; the message has the nearest name.
    """
    path, own = method_file(name)
    if path is None:
        if name not in methods():
            raise FewgraftError(f"there is no method '{name}'", nearest(name, methods()))
        return methods()[name]
    there = _of_file(path)
    if not own and len(there) > 1:
        raise FewgraftError(
            f"{path} defines several methods",
            f"Name one: {', '.join(f'{path}:{one}' for one in there)}",
        )
    if own and own not in there:
        raise FewgraftError(f"{path} defines no method '{own}'", nearest(own, there))
    return there[own or next(iter(there))]


def method_names(name: str) -> list[str]:
    """What a name stands for: itself or, of a file, each of the methods in it."""
    path, own = method_file(name)
    return [name] if path is None or own else [f"{path}:{one}" for one in _of_file(path)]


def method_file(name: str) -> tuple[Path | None, str]:
    """The file that a name refers to, and the name behind its colon; (None, "") without one."""
    if name.endswith(SUFFIX):
        return Path(name), ""
    path, colon, own = name.rpartition(":")
    return (Path(path), own) if colon and path.endswith(SUFFIX) else (None, "")


def _of_file(path: Path) -> dict[str, MethodSpec]:
    """The methods that a file of the user's own defines; read again once it has changed."""
    if not path.is_file():
        raise FewgraftError(f"there is no file {path}", "Give a method's name or a Python file.")
    specs = getattr(module_of(path), "METHODS", ())
    listed = isinstance(specs, tuple | list)
    if not listed or not specs or not all(isinstance(spec, MethodSpec) for spec in specs):
        raise FewgraftError(f"{path} defines no method", "It needs METHODS = (MethodSpec(...),).")
    for spec in specs:
        if spec.name in methods():
            raise FewgraftError(
                f"{path}: '{spec.name}' is the name of another method", "Choose one of your own."
            )
    return by_name("methods", specs)
