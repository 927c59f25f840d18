"""Feature extractors f_θ by name, one file per family.

A file in this folder that defines `BACKBONES` adds to the registry: nothing else has to be edited.
A backbone maps pictures [n, channels, size, size] to features [n, d]. Those of this project are
`nn.Sequential`s of named blocks, so that training can move the last one alone; they start from
random weights. Others come with weights, from packages that are extras, and a file that defines
`SOURCES` opens whole collections of them, as in `timm:resnet50`. Plug-ins may define both.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from fewgraft.data.store import LARGEST_SIZE
from fewgraft.errors import FewgraftError, nearest, reading
from fewgraft.parsing import validated
from fewgraft.plugins import by_name, plugins

BackboneSettings = Mapping[str, Any]


@dataclass(frozen=True)
class BackboneSpec:
    """A backbone that can be made by name; `make` takes the number of input channels."""

    name: str
    make: Callable[[int], nn.Module]
    width: int  # d, the number of features
    size: int  # the picture size it is meant for
    summary: str
    # What only trained ones have: weights, and the pictures that these are used to.
    trained: Callable[[], nn.Module] | None = None
    mean: tuple[float, ...] | None = None  # of each channel, pixels from 0 to 1
    std: tuple[float, ...] | None = None
    crop: float = 1.0  # share of the shorter side that it sees
    settings: BackboneSettings = field(default_factory=dict)  # to make it again without the source
    licence: str = "Apache-2.0"


# From what follows "timm:" to a backbone; with the settings of a saved one the source is not asked.
BackboneSource = Callable[[str, BackboneSettings], BackboneSpec]


class KnownSettings(BaseModel):
    """What the settings of every backbone of a collection say, among what its source adds."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    width: int = Field(ge=1, le=1_000_000)
    size: int = Field(ge=1, le=LARGEST_SIZE)
    crop: float = Field(gt=0, le=1)
    mean: list[float]
    std: list[Annotated[float, Field(gt=0)]]


@cache
def _families() -> tuple[ModuleType, ...]:
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    own = (importlib.import_module(f"{__name__}.{module}") for module in modules)
    return (*own, *plugins("backbones"))


@cache
def backbones() -> Mapping[str, BackboneSpec]:
    """All backbones that have a name of their own, by name."""
    specs = [spec for family in _families() for spec in getattr(family, "BACKBONES", ())]
    return by_name("backbones", specs)


@cache
def sources() -> Mapping[str, BackboneSource]:
    """Collections of backbones, by what stands before the colon."""
    return {
        prefix: source
        for family in _families()
        for prefix, source in getattr(family, "SOURCES", {}).items()
    }


def backbone_spec(name: str, settings: BackboneSettings | None = None) -> BackboneSpec:
    """The backbone of that name, or an error with the nearest one."""
    prefix, colon, rest = name.partition(":")
    if colon and prefix in sources():
        with reading(name, "usable network"):
            if settings:
                validated(KnownSettings, dict(settings))
            spec = sources()[prefix](rest, settings or {})
            validated(KnownSettings, dict(spec.settings))
            return spec
    if name not in backbones():
        known = [*backbones(), *(f"{prefix}:NAME" for prefix in sources())]
        raise FewgraftError(f"there is no backbone '{name}'", nearest(name, known))
    return backbones()[name]


def create_backbone(
    name: str, channels: int = 3, settings: BackboneSettings | None = None
) -> nn.Module:
    """A new backbone with random weights, drawn from the current random state."""
    with reading(name, "usable network"):
        return backbone_spec(name, settings).make(channels)


def trained_backbone(spec: BackboneSpec) -> nn.Module:
    """A backbone with its weights, which are foreign files."""
    assert spec.trained is not None
    with reading(spec.name, "usable network"):
        return spec.trained()
