"""The model: features f_θ and a cosine classifier over the base classes (Eq. 1); save and load.

A saved model is a folder of two files, and nothing in it is a pickle:

    model.safetensors   weights of the backbone, W_b and γ
    model.json          the card: backbone, class names, input, where it comes from, what it scored
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from fewgraft.backbones import backbone_spec, create_backbone
from fewgraft.backbones.room import no_larger_than
from fewgraft.border import Border
from fewgraft.data.pictures import Pixels
from fewgraft.data.store import LARGEST_SIZE, Channels
from fewgraft.densities import ClassPlaces, Density
from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.files import replacing_folder
from fewgraft.parsing import read_json, validated
from fewgraft.prototypes import cosine_logits, directions
from fewgraft.whitening import LARGEST_WHITENED, Space

FORMAT = 1
LARGEST_WIDTH = 1_000_000  # features
LARGEST_SIDE = 4096  # pixels of a picture before its crop
TINY = 1e-6
GAMMA_START = 10.0
MOST_EXEMPLARS = 60  # per class


class Unknown(BaseModel):
    """When to answer "unknown": the best logit lies below the threshold."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    threshold: float
    false_rejects: float = Field(ge=0, le=1)  # share of pictures of known classes it rejects
    pictures: int = Field(ge=0)  # how many pictures chose it
    chosen_on: str  # which ones


class GraftRehearsed(BaseModel):
    """What rehearsed lessons say of the method graft, beside the same lessons with refine.

    Accuracies are means of old and new photos, at the border of each method.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    border: Border
    unknown: Unknown  # the limit for scores with densities
    refine: float = Field(ge=0, le=1)
    graft: float = Field(ge=0, le=1)
    error: float = Field(ge=0, le=1)  # the standard error of their difference
    draws: int = Field(ge=1)


class ModelCard(BaseModel):
    """What goes with the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    format: int = FORMAT
    backbone: str  # a name of the registry, or "custom"
    backbone_settings: dict[str, Any] = {}  # what the name alone does not tell
    width: int = Field(ge=1, le=LARGEST_WIDTH)  # d
    classes: tuple[str, ...]  # the base classes, in the order of W_b
    size: int = Field(ge=1, le=LARGEST_SIZE)
    crop: float = Field(default=1.0, gt=0, le=1)  # share of the shorter side the model sees
    channels: Channels
    mean: tuple[float, ...]  # of each channel, pixels from 0 to 1
    std: tuple[Annotated[float, Field(gt=0)], ...]
    mirrored: bool = False  # features are the mean of a picture's and its mirror image's
    centred: bool = False  # features are taken from their mean over the base pictures
    whitened: bool = False  # features are rooted, centred and whitened within classes
    biased: bool = False  # classes have a bias that holds them back
    # Pictures that each class was learnt from; empty: not known.
    examples: tuple[Annotated[int, Field(ge=0)], ...] = ()
    unknown: Unknown | None = None
    border: Border | None = None  # where new classes begin; None: nothing was rehearsed
    exemplars: int = Field(default=0, ge=0, le=MOST_EXEMPLARS)  # features kept of each class
    graft: GraftRehearsed | None = None  # None: no lesson with exemplars was rehearsed
    density: Density | None = None  # of exemplars, beside cosines; None: cosines alone
    lessons: tuple[str, ...] = ()  # what was learnt after training, one line per lesson
    stage: str = "untrained"  # pre-trained, algorithm-1, algorithm-2, learnt
    data: str = ""  # name and content hash of what it was trained on
    recipe: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    licence: str = "Apache-2.0"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not len(self.mean) == len(self.std) == self.channels:
            raise ValueError(f"mean and std need {self.channels} numbers each")
        if self.size / self.crop > LARGEST_SIDE:
            raise ValueError(f"crop: {self.crop} of a side would be {self.size} pixels")
        if len(set(self.classes)) < len(self.classes):
            raise ValueError("two classes have the same name")
        if self.whitened and (not self.centred or self.width > LARGEST_WHITENED):
            raise ValueError(f"whitened: only centred features, up to {LARGEST_WHITENED}, can be")
        if self.density and not self.exemplars:
            raise ValueError("density: it needs exemplars")
        if self.examples and len(self.examples) != len(self.classes):
            raise ValueError(f"examples has {len(self.examples)} numbers, not one for each class")
        return self


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
        self.whitening: Tensor
        self.offset: Tensor
        side = card.width if card.whitened else 0
        self.register_buffer("whitening", torch.eye(side), persistent=card.whitened)
        self.register_buffer("offset", torch.zeros(side), persistent=card.whitened)
        self.bias: Tensor
        self.register_buffer("bias", torch.zeros(len(card.classes)), persistent=card.biased)
        self.exemplars: Tensor
        self.exemplar_weights: Tensor
        kept = (len(card.classes), card.exemplars)
        none = torch.zeros(*kept, card.width if card.exemplars else 0, dtype=torch.half)
        self.register_buffer("exemplars", none, persistent=bool(card.exemplars))
        weights = torch.zeros(kept, dtype=torch.half)
        self.register_buffer("exemplar_weights", weights, persistent=bool(card.exemplars))
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
        logits = logits + self.bias if self.card.biased else logits
        places = self.places
        return logits if places is None else logits + places.scores(directions(features))

    @property
    def places(self) -> ClassPlaces | None:
        """Where pictures of the classes lie, for a classifier that looks at that."""
        if self.card.density is None:
            return None
        return ClassPlaces(self.exemplars, self.exemplar_weights, self.card.density)

    def embed(self, pictures: Tensor) -> Tensor:
        """Features [n, d] of prepared pictures, in the space of this model."""
        return self.place(self.raw(pictures))

    def raw(self, pictures: Tensor) -> Tensor:
        """Features [n, d] of the backbone alone; in training, without the mirror image's."""
        features: Tensor = self.backbone(pictures)
        if self.card.mirrored and not self.training:
            features = (features + self.backbone(pictures.flip(3))) / 2
        return features

    def place(self, features: Tensor) -> Tensor:
        """Features of the backbone [n, d], in the space in which this model compares them."""
        if self.card.whitened:
            return Space(self.centre, self.whitening, self.offset)(features)
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
        std=tuple(max(value, TINY) for value in std),  # pictures may all be one grey
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


def weights_hash(module: nn.Module, about: str = "", length: int = 16) -> str:
    """A name for exactly these weights, and for what else is said `about` them."""
    return tensors_hash(module.state_dict(), about, length)


def tensors_hash(tensors: Mapping[str, Tensor], about: str = "", length: int = 16) -> str:
    """A name for exactly these tensors."""
    digest = hashlib.sha256(about.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:length]


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
    with writing(folder), replacing_folder(folder) as work:
        save_file(tensors, work / "model.safetensors")
        (work / "model.json").write_text(model.card.model_dump_json(indent=1))
        for name, content in (beside or {}).items():
            (work / name).write_bytes(content)


def _stored(tensor: Tensor, half: bool) -> Tensor:
    tensor = tensor.detach().cpu().contiguous()
    return tensor.half() if half and tensor.is_floating_point() else tensor


def load_model(folder: str | Path, backbone: nn.Module | None = None) -> CosineModel:
    """Read a model: f_θ, W_b and γ, with a card that says where it comes from.

    Args:
        folder: What `fewgraft train`, `base` or `learn` wrote: model.safetensors and model.json.
        backbone: Your own network, for a model that was saved with one.

    Returns:
        A `CosineModel` in evaluation mode, on the CPU. Its `embed` takes pictures
        [n, channels, size, size] to features [n, d]; called, it gives logits [n, N_b].

    Raises:
        FewgraftError: The files are absent or damaged, or the backbone is missing.

    Example:
        >>> from fewgraft.zoo import models_folder
        >>> model = fewgraft.load_model(models_folder("icons") / "algorithm-2")
        >>> model.card.backbone, model.weight.shape
        ('resnet12-tiny', torch.Size([108, 128]))
    """
    folder = Path(folder)
    card = read_card(folder / "model.json")
    if backbone is None and card.backbone == "custom":
        raise FewgraftError(
            f"{folder} was saved with a backbone of its own",
            "Pass that module: load_model(folder, backbone=...).",
        )
    path = folder / "model.safetensors"
    with reading(path, "file of this model's weights"):
        tensors = _read_weights(path, card)
        if backbone is None:
            with no_larger_than(sum(tensor.numel() for tensor in tensors.values())):
                backbone = create_backbone(card.backbone, card.channels, card.backbone_settings)
        model = CosineModel(card, backbone)
        model.load_state_dict(_fitting(tensors, model.state_dict()))
        if card.backbone != "custom":
            _try_out(model.eval())
    model.eval()
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _read_weights(path: Path, card: ModelCard) -> dict[str, Tensor]:
    """The tensors of a file that has the classes of the card; numbers that are none are refused."""
    with safe_open(path, "pt") as file:
        names = set(file.keys())
        shape = file.get_slice("weight").get_shape() if "weight" in names else None
        if shape != [len(card.classes), card.width]:
            raise ValueError(
                f"its class weights are {shape}, not {[len(card.classes), card.width]}"
            )
        tensors = {name: file.get_tensor(name) for name in sorted(names)}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor.float()).all():
            raise ValueError(f"'{name}' holds numbers that are not finite")
    return tensors


def _fitting(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in the types that the model has them in; it has these and no others."""
    if other := sorted(tensors.keys() ^ wanted.keys()):
        which = "lacks" if other[0] in wanted else "has another tensor"
        raise ValueError(f"it {which} '{other[0]}'")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            shapes = f"{list(tensor.shape)}, not {list(wanted[name].shape)}"
            raise ValueError(f"'{name}' is {shapes}")
    return {name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()}


@torch.inference_mode()
def _try_out(model: CosineModel) -> None:
    """One grey picture, so that what the network cannot do shows now."""
    card = model.card
    grey = torch.full((1, card.size, card.size, card.channels), 127, dtype=torch.uint8)
    features = model.embed(model.prepare(grey))
    if features.shape != (1, card.width) or not torch.isfinite(features).all():
        raise ValueError(f"the network gives no {card.width} finite features")


def read_card(path: Path) -> ModelCard:
    """The card alone, from model.json."""
    with reading(path, "readable model card"):
        content = read_json(path)
        if isinstance(content, dict) and content.get("format", FORMAT) != FORMAT:
            raise ValueError(
                f"it has format {content['format']}; this version reads format {FORMAT}"
            )
        card = validated(ModelCard, content)
        if not card.classes:
            raise ValueError("classes: it names none")
        return card
