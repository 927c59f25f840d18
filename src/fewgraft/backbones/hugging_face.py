"""Any vision network that transformers knows, as in `hf:my-folder` or `hf:owner/name`.

A folder that `save_pretrained` wrote, or what the hub's cache on this machine holds. Nothing is
downloaded, no code that comes with a network is run, and weights are read from safetensors only.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewgraft.backbones import BackboneSettings, BackboneSpec
from fewgraft.data.store import LARGEST_SIZE
from fewgraft.errors import FewgraftError, reading
from fewgraft.extras import extra, first_line, quiet
from fewgraft.parsing import read_json, validated

EXTRA = "hf"
PROCESSOR = "preprocessor_config.json"
# Long, and of no use to a network without its classifier, or a door to foreign code.
LEFT_OUT = ("id2label", "label2id", "auto_map")
# Names of code that transformers would fetch.
FOREIGN = ("auto_map", "attn_implementation", "_attn_implementation", "quantization_config")


class PooledFeatures(nn.Module):
    """Pictures [n, channels, size, size] → the network's pooled output [n, d].

    Without one, the mean over tokens [n, tokens, d] or places [n, d, h, w].
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor) -> Tensor:
        """Features [n, d]."""
        output = self.network(pixel_values=pictures)
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        hidden: Tensor = output.last_hidden_state
        return hidden.mean((2, 3) if hidden.ndim == 4 else 1)


def hugging_face_backbone(source: str, settings: BackboneSettings) -> BackboneSpec:
    """A folder or a name in the hub's cache; a saved one is made again from its settings."""
    settings = settings or _settings(source)
    if not isinstance(settings["config"], dict) or "model_type" not in settings["config"]:
        raise ValueError("its config has no model_type")
    return BackboneSpec(
        name=f"hf:{source}",
        make=partial(_make, settings),
        width=settings["width"],
        size=settings["size"],
        summary=f"{settings['config']['model_type']} by transformers",
        trained=lambda: PooledFeatures(_loaded(source)[0]).eval(),
        mean=tuple(settings["mean"]),
        std=tuple(settings["std"]),
        crop=settings["crop"],
        settings=settings,
        licence="see the model card",
    )


def _settings(source: str) -> BackboneSettings:
    pictures = picture_settings(_processor(source))
    network, pooler = _loaded(source)
    config = json.loads(network.config.to_json_string(use_diff=False))
    blank = torch.zeros(1, config.get("num_channels", 3), pictures["size"], pictures["size"])
    with torch.inference_mode(), _explained(f"{source} does not take pictures alone"):
        width = PooledFeatures(network)(blank).shape[1]
    return {
        "config": {key: value for key, value in config.items() if key not in LEFT_OUT},
        "pooler": pooler,
        "width": width,
        **pictures,
    }


def _make(settings: BackboneSettings, channels: int) -> nn.Module:
    """The network with random weights."""
    config = settings["config"]
    if channels != config.get("num_channels", 3):
        raise FewgraftError(
            f"this network sees {config.get('num_channels', 3)} channels, not {channels}"
        )
    transformers = extra("transformers", EXTRA)
    config = {key: value for key, value in config.items() if key not in FOREIGN}
    with _explained("this version of transformers cannot make the network again"):
        with torch.device("meta"):  # without memory first: the settings may ask for any
            made = transformers.AutoConfig.for_model(**config)
            transformers.AutoModel.from_config(made, trust_remote_code=False)
        made = transformers.AutoConfig.for_model(**config)
        network = transformers.AutoModel.from_config(made, trust_remote_code=False)
    if not settings["pooler"]:
        network.pooler = None
    return PooledFeatures(network)


def _loaded(source: str) -> tuple[Any, bool]:
    """The network with its weights, and whether its pooling layer has any.

    A checkpoint of a classifier often lacks those of the pooling layer; transformers would fill
    them with random numbers. Whatever else is missing is an error.
    """
    transformers = extra("transformers", EXTRA)
    local = {"local_files_only": True, "trust_remote_code": False}
    with _explained(f"hf:{source} cannot be loaded"), _silent(transformers):
        config = transformers.AutoConfig.from_pretrained(source, **local)
        config = getattr(config, "vision_config", config)  # of two towers, the one with eyes
        network, report = transformers.AutoModel.from_pretrained(
            source,
            config=config,
            use_safetensors=True,
            dtype=torch.float32,
            output_loading_info=True,
            **local,
        )
    missing = sorted(report["missing_keys"])
    others = [key for key in missing if not key.startswith("pooler.")]
    if others:
        raise FewgraftError(f"hf:{source} lacks the weights {', '.join(others[:3])}")
    if missing:
        network.pooler = None
    return network.eval(), not missing


@contextmanager
def _explained(problem: str) -> Iterator[None]:
    """Whatever transformers raises in here, as a sentence."""
    try:
        yield
    except FewgraftError:
        raise
    except Exception as error:
        raise FewgraftError(
            f"{problem}: {first_line(error)}",
            "It must be a folder with config.json and model.safetensors, or be in the hub's "
            "cache on this machine: nothing is downloaded.",
        ) from error


@contextmanager
def _silent(transformers: Any) -> Iterator[None]:
    """No warnings of weights that are not needed, and no progress bars."""
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        with quiet():
            yield
    finally:
        if shown:
            bars.enable_progress_bar()


def _processor(source: str) -> Mapping[str, Any]:
    """What the network expects of pictures, as it was saved with it."""
    if Path(source).is_dir():
        path = Path(source) / PROCESSOR
    else:
        with _explained(f"hf:{source} cannot be found"):
            cached = extra("huggingface_hub", EXTRA).try_to_load_from_cache(source, PROCESSOR)
        path = Path(cached if isinstance(cached, str) else PROCESSOR)
    hint = f"A {PROCESSOR} with size, image_mean and image_std must be beside its weights."
    if not path.is_file():
        raise FewgraftError(f"hf:{source} does not say what pictures it expects", hint)
    with reading(path, "readable image processor", hint):
        content: dict[str, Any] = validated(dict, read_json(path))
        return content


def picture_settings(processor: Mapping[str, Any]) -> dict[str, Any]:
    """Size, crop, mean and standard deviation from the JSON of an image processor.

    Where a processor squashes a picture into a square, we cut the middle square out.
    """
    with reading(PROCESSOR, "readable image processor"):
        return _picture_settings(processor)


def _picture_settings(processor: Mapping[str, Any]) -> dict[str, Any]:
    size = _side(processor.get("size"))
    if processor.get("do_center_crop") and "crop_size" in processor:
        size, resized = _side(processor["crop_size"]), size
        crop = min(1.0, size / resized)
    else:  # the rule of ConvNeXt and ResNet: large pictures are taken whole
        crop = float(processor.get("crop_pct") or 1.0) if size < 384 else 1.0
    if processor.get("do_normalize", True):
        mean, std = processor.get("image_mean"), processor.get("image_std")
    else:
        mean, std = [0.0] * 3, [1.0] * 3
    if not _numbers(mean) or not _numbers(std) or abs(_rescale(processor) * 255 - 1) > 1e-3:
        raise FewgraftError(
            f"the {PROCESSOR} has no mean and standard deviation of pixels from 0 to 1"
        )
    return {"size": size, "crop": crop, "mean": mean, "std": std}


def _side(size: Any) -> int:
    """The side of a square, which processors write in three ways."""
    if isinstance(size, dict):
        sides = {size[key] for key in ("height", "width", "shortest_edge") if size.get(key)}
        size = sides.pop() if len(sides) == 1 else None
    if not isinstance(size, int) or not 1 <= size <= LARGEST_SIZE:
        raise FewgraftError(f"the {PROCESSOR} gives no square size of pictures")
    return size


def _rescale(processor: Mapping[str, Any]) -> float:
    factor = processor.get("rescale_factor", 1 / 255)
    return factor if isinstance(factor, float) and processor.get("do_rescale", True) else 0.0


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, (int, float)) for value in values)


SOURCES = {"hf": hugging_face_backbone}
