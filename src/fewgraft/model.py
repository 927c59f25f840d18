"""The model: features f_θ and a cosine classifier over the base classes (Eq. 1); save and load.

A saved model is a folder of two files, and nothing in it is a pickle:

    model.safetensors   weights of the backbone, W_b and γ
    model.json          the card: backbone, class names, input, where it comes from, what it scored
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from fewgraft.backbones import backbone_spec, create_backbone
from fewgraft.data.pictures import Pixels
from fewgraft.errors import FewgraftError
from fewgraft.files import replacing_folder
from fewgraft.prototypes import cosine_logits

FORMAT = 1
GAMMA_START = 10.0


class Unknown(BaseModel):
    """When to answer "unknown": the best logit lies below the threshold."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    threshold: float
    false_rejects: float  # share of pictures of known classes that it rejects
    pictures: int  # how many pictures chose it
    chosen_on: str  # which ones


class ModelCard(BaseModel):
    """What goes with the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int = FORMAT
    backbone: str  # a name of the registry, or "custom"
    backbone_settings: dict[str, Any] = {}  # what the name alone does not tell
    width: int  # d
    classes: tuple[str, ...]  # the base classes, in the order of W_b
    size: int
    crop: float = 1.0  # share of the shorter side that the model sees
    channels: int
    mean: tuple[float, ...]  # of each channel, pixels from 0 to 1
    std: tuple[float, ...]
    mirrored: bool = False  # features are the mean of a picture's and its mirror image's
    centred: bool = False  # features are taken from their mean over the base pictures
    biased: bool = False  # classes have a bias that holds them back
    examples: tuple[int, ...] = ()  # pictures each class was learnt from; empty: not known
    unknown: Unknown | None = None
    lessons: tuple[str, ...] = ()  # what was learnt after training, one line a time
    stage: str = "untrained"  # pre-trained, algorithm-1, algorithm-2, learnt
    data: str = ""  # name and content hash of what it was trained on
    recipe: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    licence: str = "Apache-2.0"


class CosineModel(nn.Module):
    """f_θ and W_b, γ: pictures [n, channels, size, size] → logits γ·cos(f, w_k) [n, N_b]."""

    def __init__(self, card: ModelCard, backbone: nn.Module | Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.card = card
        self.backbone = backbone if isinstance(backbone, nn.Module) else FunctionBackbone(backbone)
        self.weight = nn.Parameter(torch.empty(len(card.classes), card.width))
        nn.init.normal_(self.weight, std=math.sqrt(2 / card.width))
        self.gamma = nn.Parameter(torch.tensor(GAMMA_START))
        self.centre: Tensor
        centre = torch.zeros(card.width)
        self.register_buffer("centre", centre, persistent=card.centred)
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(len(card.classes)), persistent=card.biased)
        self.mean: Tensor
        self.std: Tensor
        shape = (1, card.channels, 1, 1)
        self.register_buffer("mean", torch.tensor(card.mean).view(shape), persistent=False)
        self.register_buffer("std", torch.tensor(card.std).view(shape), persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Logits over the classes."""
        return self.classify(self.embed(pictures))

    def classify(self, features: Tensor) -> Tensor:
        """Logits [n, N_b] of features [n, d]."""
        logits = cosine_logits(features, self.weight, self.gamma)
        return logits + self.bias if self.card.biased else logits

    def embed(self, pictures: Tensor) -> Tensor:
        """Features [n, d] of prepared pictures; in training, of them alone and not their mirror."""
        features: Tensor = self.backbone(pictures)
        if self.card.mirrored and not self.training:
            features = (features + self.backbone(pictures.flip(3))) / 2
        return features - self.centre if self.card.centred else features

    def prepare(self, pixels: Tensor) -> Tensor:
        """uint8 [n, size, size, channels] → normalised floats [n, channels, size, size].

        The bytes stay where they are: the result is channels-last in memory, which convolutions
        on a CPU like best.
        """
        pictures = pixels.to(self.mean.device).permute(0, 3, 1, 2)
        return (pictures.float() / 255 - self.mean) / self.std


class FunctionBackbone(nn.Module):
    """Any function from pictures to features, as a backbone without weights of its own."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, pictures: Tensor) -> Tensor:
        """Whatever the function gives."""
        return self.function(pictures)


def new_model(
    backbone: str,
    classes: Sequence[str],
    size: int,
    channels: int,
    mean: Sequence[float],
    std: Sequence[float],
    seed: int = 0,
    *,
    mirrored: bool = False,
) -> CosineModel:
    """An untrained model; the same seed gives the same weights."""
    card = ModelCard(
        backbone=backbone,
        width=backbone_spec(backbone).width,
        classes=tuple(classes),
        size=size,
        channels=channels,
        mean=tuple(mean),
        std=tuple(std),
        mirrored=mirrored,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CosineModel(card, create_backbone(backbone, channels))
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@torch.inference_mode()
def embed_all(model: CosineModel, pixels: Pixels, batch: int = 256) -> Tensor:
    """Features [n, d], on the CPU, of uint8 pictures [n, size, size, channels], batch by batch."""
    was_training = model.training
    model.eval()
    starts = range(0, len(pixels), batch)
    features = [
        model.embed(model.prepare(torch.from_numpy(np.array(pixels[s : s + batch])))).cpu()
        for s in starts
    ]
    model.train(was_training)
    return torch.cat(features) if features else torch.empty(0, model.card.width)


def save_model(
    model: CosineModel,
    folder: Path,
    *,
    half: bool = False,
    beside: Mapping[str, bytes] | None = None,
) -> None:
    """Write the model; an old one in this place stays until the new one is complete.

    `half` stores 16-bit floats: half the size; the rounding is far below what training leaves open.
    `beside` are other files of the folder, by name.
    """
    tensors = {name: _stored(tensor, half) for name, tensor in model.state_dict().items()}
    try:
        with replacing_folder(folder) as work:
            save_file(tensors, work / "model.safetensors")
            (work / "model.json").write_text(model.card.model_dump_json(indent=1))
            for name, content in (beside or {}).items():
                (work / name).write_bytes(content)
    except OSError as error:
        raise FewgraftError(f"cannot write {folder}: {error.strerror or error}") from error


def _stored(tensor: Tensor, half: bool) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.half() if half and tensor.is_floating_point() else tensor


def load_model(folder: Path, backbone: nn.Module | None = None) -> CosineModel:
    """Read a model. One that was saved with a backbone of your own needs that `backbone` again."""
    card = read_card(folder / "model.json")
    if backbone is None:
        if card.backbone == "custom":
            raise FewgraftError(
                f"{folder} was saved with a backbone of its own",
                "Pass that module: load_model(folder, backbone=...).",
            )
        backbone = create_backbone(card.backbone, card.channels, card.backbone_settings)
    model = CosineModel(card, backbone)
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path)
        wanted = model.state_dict()
        model.load_state_dict({k: v.to(wanted[k].dtype) for k, v in tensors.items()})
    except (OSError, SafetensorError, RuntimeError, KeyError) as error:
        raise FewgraftError(f"{path} does not hold this model: {error}") from None
    model.eval()
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def read_card(path: Path) -> ModelCard:
    """The card alone, from model.json."""
    try:
        content = json.loads(path.read_bytes())
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise FewgraftError(
                f"{path} has format {content['format']}; this version reads format {FORMAT}"
            )
        return ModelCard.model_validate(content)
    except OSError as error:
        raise FewgraftError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise FewgraftError(f"{path} is damaged: {where} {first['msg']}") from None
    except ValueError as error:
        raise FewgraftError(f"{path} is damaged: {error}") from None
