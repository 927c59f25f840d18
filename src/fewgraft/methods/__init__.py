"""Methods by name, one file a paper.

A file in this folder that defines `METHODS` adds to the registry: nothing else has to be edited.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from fewgraft.errors import FewgraftError, nearest
from fewgraft.methods.base import MethodSpec


@cache
def methods() -> Mapping[str, MethodSpec]:
    """All methods by name, in the order in which tables list them."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [importlib.import_module(f"{__name__}.{module}") for module in modules]
    specs = [spec for module in found for spec in getattr(module, "METHODS", ())]
    return {spec.name: spec for spec in sorted(specs, key=lambda spec: (spec.rank, spec.name))}


def method_spec(name: str) -> MethodSpec:
    """The method of that name, or an error with the nearest one."""
    if name not in methods():
        raise FewgraftError(f"there is no method '{name}'", nearest(name, methods()))
    return methods()[name]
