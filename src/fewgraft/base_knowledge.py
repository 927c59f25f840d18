"""What is kept of base classes beside their weights: a few features each, and how features spread.

Feature replay: no picture is kept, but numbers of pictures of base/train are. They are stored in a
folder beside the model that they stand on, such as `algorithm-2-knowledge`, of two files:

    knowledge.safetensors  the tensors, in half precision
    knowledge.json         the card: which model, which data
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.files import replacing_folder
from fewgraft.model import tensors_hash
from fewgraft.parsing import read_json, validated

FORMAT = 1
FILE, CARD = "knowledge.safetensors", "knowledge.json"
NAMES = ("exemplars", "spread", "mid_spread")
EXEMPLARS = 60  # per base class


Axes = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class BaseKnowledge:
    """Numbers of half precision, whether they were stored or not: both give the same answers.

    Attributes:
        exemplars: Directions of up to m pictures per base class [N_b, m, d]; rows of zeros where a
            class has fewer.
        spread: Σ [d, d], the covariance of features within base classes, of mean variance 1.
        mid_spread: The same of mid-level features [c, c]; None: there are none.
    """

    exemplars: Tensor
    spread: Tensor
    mid_spread: Tensor | None = None

    @cached_property
    def axes(self) -> "Axes":
        """Variances [d] and directions [d, d] of Σ, in double precision."""
        return axes_of(self.spread)

    @cached_property
    def mid_axes(self) -> "Axes | None":
        """The same of mid-level features."""
        return None if self.mid_spread is None else axes_of(self.mid_spread)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Those that are there, by name."""
        found = {name: getattr(self, name) for name in NAMES}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @cached_property
    def hash(self) -> str:
        """A name for exactly these tensors."""
        return tensors_hash(self.tensors)

    def to(self, device: torch.device) -> "BaseKnowledge":
        """The same on a device."""
        return BaseKnowledge(**{name: tensor.to(device) for name, tensor in self.tensors.items()})


class KnowledgeCard(BaseModel):
    """What goes with the tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    stage: str  # of the model
    weights: str  # hash of the model
    data: str  # name and content hash of what it was computed from


def knowledge_of(features: Sequence[Tensor], mid: Sequence[Tensor] | None = None) -> BaseKnowledge:
    """From directions [m_k, d] of some pictures of every base class k, and mid-level ones."""
    most = max([0, *map(len, features)])
    padded = [torch.cat([one, one.new_zeros(most - len(one), one.shape[1])]) for one in features]
    return BaseKnowledge(
        _halved(torch.stack(padded)),
        _halved(spread_within(features)),
        None if mid is None else _halved(spread_within(mid)),
    )


def spread_within(features: Sequence[Tensor]) -> Tensor:
    """Σ ∝ Σ_k Σ_{x∈k} (x − μ_k)(x − μ_k)ᵀ of the features [m_k, d] of each class.

    Scaled to a mean variance of 1, which half precision has room for.
    """
    residuals = torch.cat([one - one.mean(0) for one in features]).double()
    found = residuals.T @ residuals
    variance = found.diagonal().mean()
    identity = torch.eye(len(found), dtype=found.dtype)
    return (found / variance if variance > 0 else identity).to(features[0].dtype)


def axes_of(spread: Tensor) -> Axes:
    """Σ = V diag(v) Vᵀ: v [d] and V [d, d]."""
    values, vectors = torch.linalg.eigh(spread.double())
    return values, vectors


def _halved(tensor: Tensor) -> Tensor:
    return tensor.half().float()


def knowledge_folder(models: Path, stage: str) -> Path:
    """Where it is, in the folder that holds a model per stage."""
    return models / f"{stage}-knowledge"


def has_knowledge(models: Path, stage: str) -> bool:
    """Whether it was computed."""
    return (knowledge_folder(models, stage) / CARD).is_file()


def save_knowledge(knowledge: BaseKnowledge, card: KnowledgeCard, models: Path) -> Path:
    """Write it beside its model, or not at all."""
    folder = knowledge_folder(models, card.stage)
    tensors = {name: t.half().cpu().contiguous() for name, t in knowledge.tensors.items()}
    with writing(folder), replacing_folder(folder) as work:
        save_file(tensors, work / FILE)
        (work / CARD).write_text(card.model_dump_json(indent=1))
    return folder


def load_knowledge(
    models: Path, stage: str, weights: Tensor, model: str
) -> tuple[BaseKnowledge, KnowledgeCard]:
    """What `save_knowledge` wrote, of exactly the model of this hash with W_b `weights`."""
    folder = knowledge_folder(models, stage)
    with reading(folder / CARD, "readable card of base knowledge"):
        card = validated(KnowledgeCard, read_json(folder / CARD))
    if card.weights != model:
        raise FewgraftError(
            f"{folder} was computed with another model ({card.weights}), not this one ({model})",
            "Remove it: it is computed again, or `fewgraft train RECIPE --only graft` stores it.",
        )
    with reading(folder / FILE, "readable file of base knowledge"):
        tensors = {name: t.float() for name, t in load_file(folder / FILE).items()}
        _check(tensors, *weights.shape)
    return BaseKnowledge(**tensors), card


def _check(tensors: dict[str, Tensor], n_base: int, width: int) -> None:
    """Tensors are those of a model with so many base classes and features."""
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    mid = shapes.get("mid_spread", [0, 0])
    fits = (
        {"exemplars", "spread"} <= shapes.keys() <= set(NAMES)
        and len(shapes["exemplars"]) == 3
        and shapes["exemplars"][::2] == [n_base, width]
        and shapes["spread"] == [width, width]
        and mid == [mid[0], mid[0]]
    )
    if not fits:
        raise ValueError(f"it has {shapes}, which do not fit {n_base} classes of {width} features")
    if bad := [name for name, t in tensors.items() if not torch.isfinite(t).all()]:
        raise ValueError(f"'{bad[0]}' holds numbers that are not finite")
