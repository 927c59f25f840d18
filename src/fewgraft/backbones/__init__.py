"""Feature extractors f_θ by name, one file a family.

A file in this folder that defines `BACKBONES` adds to the registry: nothing else has to be edited.
A backbone maps pictures [n, channels, size, size] to features [n, d]. Those here are
`nn.Sequential`s of named blocks, so that training can move the last one alone.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from torch import nn

from fewgraft.errors import FewgraftError, nearest


@dataclass(frozen=True)
class BackboneSpec:
    """A backbone that can be made by name; `make` takes the number of input channels."""

    name: str
    make: Callable[[int], nn.Module]
    width: int  # d, the number of features
    size: int  # the picture size it is meant for
    summary: str


@cache
def backbones() -> Mapping[str, BackboneSpec]:
    """All backbones, by name."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    found = [importlib.import_module(f"{__name__}.{module}") for module in modules]
    specs = [spec for module in found for spec in getattr(module, "BACKBONES", ())]
    return {spec.name: spec for spec in specs}


def backbone_spec(name: str) -> BackboneSpec:
    """The backbone of that name, or an error with the nearest one."""
    if name not in backbones():
        raise FewgraftError(f"there is no backbone '{name}'", nearest(name, backbones()))
    return backbones()[name]


def create_backbone(name: str, channels: int = 3) -> nn.Module:
    """A new backbone with random weights, drawn from the current random state."""
    return backbone_spec(name).make(channels)
