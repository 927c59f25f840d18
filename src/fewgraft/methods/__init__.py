"""Methods by name, one file per paper.

A file in this folder, or in one below it, that defines `METHODS` adds to the registry: nothing else
has to be edited. A file anywhere else can be used by its path instead of a name.

Example:
    >>> "proposed" in fewgraft.methods.methods()
    True
    >>> fewgraft.methods.method_spec("+pr").title
    'Meta-Inc-Baseline + PR'
"""

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fewgraft.errors import FewgraftError, nearest, reading
from fewgraft.methods.base import MethodSpec
from fewgraft.methods.beside_base import beside_base


@cache
def methods() -> Mapping[str, MethodSpec]:
    """All methods by name, in the order in which tables list them.

    Returns:
        A `MethodSpec` per name.
    """
    modules = sorted(module.name for module in pkgutil.walk_packages(__path__, f"{__name__}."))
    found = [importlib.import_module(module) for module in modules]
    specs = [spec for module in found for spec in getattr(module, "METHODS", ())]
    specs += beside_base(specs)
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: (spec.rank, spec.name))}


def method_spec(name: str) -> MethodSpec:
    """The method of that name or in that file.

    Args:
        name: Of a method, or of a Python file that defines one.

    Returns:
        A `MethodSpec`.

    Raises:
        FewgraftError: There is no such method; the message has the nearest name.
    """
    if name.endswith(".py"):
        path = Path(name)
        if not path.is_file():
            raise FewgraftError(
                f"there is no file {path}", "Give a method's name or a Python file."
            )
        return _from_file(path, path.stat().st_mtime_ns)
    if name not in methods():
        raise FewgraftError(f"there is no method '{name}'", nearest(name, methods()))
    return methods()[name]


@cache
def _from_file(path: Path, changed: int) -> MethodSpec:
    """The one method that a file of the user's own defines; read again once it has `changed`."""
    del changed
    with reading(path, "Python file with a method", "It needs METHODS = (MethodSpec(...),)."):
        found = importlib.util.spec_from_file_location(path.stem, path)
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        sys.modules[path.stem] = module  # dataclasses look their module up
        found.loader.exec_module(module)
        specs: tuple[MethodSpec, ...] = tuple(getattr(module, "METHODS", ()))
        if len(specs) != 1 or not isinstance(specs[0], MethodSpec):
            raise ValueError(f"it defines {len(specs)} methods")
        return specs[0]
