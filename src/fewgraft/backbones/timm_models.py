"""Any network of timm, as in `timm:resnet50` or `timm:resnet50@weights.safetensors`.

Weights come from the named file, else from what the hub's local cache holds; nothing is downloaded.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fewgraft.backbones import BackboneSettings, BackboneSpec
from fewgraft.errors import FewgraftError, nearest
from fewgraft.extras import extra, first_line

EXTRA = "timm"


def timm_backbone(rest: str, settings: BackboneSettings) -> BackboneSpec:
    """NAME or NAME@FILE; a saved one is made again from its settings."""
    name, _, file = rest.partition("@")
    settings = settings or _settings(name)
    return BackboneSpec(
        name=f"timm:{rest}",
        make=partial(_make, name),
        width=settings["width"],
        size=settings["size"],
        summary=f"{name} of timm",
        trained=partial(_trained, name, file),
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        crop=settings["crop"],
        settings=settings,
        licence=str(settings["licence"]),
    )


def _settings(name: str) -> BackboneSettings:
    """What timm knows of this network."""
    with torch.random.fork_rng(devices=[]):  # made only to look at
        network = _make(name, 3)
    data = extra("timm.data", EXTRA).resolve_data_config({}, model=network)
    _, height, width = data["input_size"]
    if height != width:
        raise FewgraftError(f"timm:{name} takes {width}×{height} pixels, which is not a square")
    return {
        "width": getattr(network, "head_hidden_size", network.num_features),
        "size": height,
        "crop": min(1.0, float(data["crop_pct"])),
        "mean": list(data["mean"]),
        "std": list(data["std"]),
        "licence": _config(name).get("license") or "see timm",
    }


def _make(name: str, channels: int, **weights: Any) -> nn.Module:
    timm = extra("timm", EXTRA)
    if not timm.is_model(name):  # else timm would look for it elsewhere, also in the network
        raise FewgraftError(f"timm has no network '{name}'", nearest(name, timm.list_models()))
    network: nn.Module = timm.create_model(name, num_classes=0, in_chans=channels, **weights)
    return network


def _config(name: str) -> Mapping[str, Any]:
    config = extra("timm", EXTRA).get_pretrained_cfg(name)
    return config.to_dict() if config else {}


def _trained(name: str, file: str) -> nn.Module:
    path = Path(file) if file else _cached(name)
    if path.suffix != ".safetensors" or not path.is_file():
        raise FewgraftError(f"{path} is not a safetensors file", f"timm:{name}@FILE.safetensors")
    # The hub's name is taken out, so that timm has nothing but the file to load.
    source = {"file": str(path), "hf_hub_id": None, "url": "", "custom_load": False}
    try:
        return _make(name, 3, pretrained=True, pretrained_cfg_overlay=source).eval()
    except Exception as error:  # whatever the loading code of hundreds of networks raises
        raise FewgraftError(f"{path} does not hold {name}: {first_line(error)}") from error


def _cached(name: str) -> Path:
    hub = extra("huggingface_hub", EXTRA)
    repository = _config(name).get("hf_hub_id") or ""
    path = hub.try_to_load_from_cache(repository, "model.safetensors") if repository else None
    if not isinstance(path, str):
        raise FewgraftError(
            f"the weights of timm:{name} are not in the hub's cache on this machine",
            f"Fetch {repository or 'them'} with the hub's own tool, or name a file: "
            f"timm:{name}@FILE.safetensors",
        )
    return Path(path)


SOURCES = {"timm": timm_backbone}
