"""What methods have learnt beforehand, saved beside the models it stands on.

The pieces of one method for one number of shots are a folder of two files, such as `lwof-1-shot`:

    pieces.safetensors  the tensors
    pieces.json         the card: method, shots, hyper-parameters, settings of training, which model
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from fewgraft.errors import FewgraftError, reading, writing
from fewgraft.files import replacing_folder
from fewgraft.model import tensors_hash
from fewgraft.parsing import read_json, validated

FORMAT = 1
FILE = "pieces.safetensors"


class PiecesCard(BaseModel):
    """What goes with the tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    method: str
    shots: int = Field(ge=1)
    hyper: dict[str, Any]  # all hyper-parameters of the method
    stage: str  # of the model
    weights: str  # hash of the model
    data: str  # name and content hash of what it was learnt on
    settings: dict[str, Any]  # the recipe's section, and its seed
    metrics: dict[str, float]


@dataclass(frozen=True)
class Pieces:
    """Tensors by name, with their card."""

    card: PiecesCard
    tensors: Mapping[str, Tensor]

    @cached_property
    def hash(self) -> str:
        """A name for exactly these tensors."""
        return tensors_hash(self.tensors)


def pieces_folder(models: Path, method: str, shots: int) -> Path:
    """Where pieces are, in the folder that holds a model per stage."""
    return models / f"{method}-{shots}-shot"


def has_pieces(models: Path, method: str, shots: int) -> bool:
    """Whether a method that learns `method` can be evaluated; one that learns nothing can."""
    return not method or (pieces_folder(models, method, shots) / "pieces.json").is_file()


def save_pieces(pieces: Pieces, models: Path, *, half: bool = False) -> Path:
    """Write pieces beside their model, or not at all; `half` stores 16-bit floats."""
    folder = pieces_folder(models, pieces.card.method, pieces.card.shots)
    tensors = {
        name: (t.half() if half else t).detach().cpu().contiguous()
        for name, t in pieces.tensors.items()
    }
    with writing(folder), replacing_folder(folder) as work:
        save_file(tensors, work / FILE)
        (work / "pieces.json").write_text(pieces.card.model_dump_json(indent=1))
    return folder


def load_pieces(models: Path, method: str, shots: int) -> Pieces:
    """Read what `save_pieces` wrote, in single precision."""
    folder = pieces_folder(models, method, shots)
    if not has_pieces(models, method, shots):
        raise FewgraftError(
            f"{models} has nothing that '{method}' has learnt for {shots} shot{'s'[: shots > 1]}",
            f"`fewgraft train RECIPE --only {method} --out FOLDER` makes it: "
            f"then use the models of FOLDER. Shots: learning.{method}.shots of the recipe.",
        )
    with reading(folder / "pieces.json", "readable card of pieces"):
        card = validated(PiecesCard, read_json(folder / "pieces.json"))
        if (card.method, card.shots) != (method, shots):
            raise ValueError(f"it is of {card.method} at {card.shots} shots")
    with reading(folder / FILE, "readable file of pieces"):
        tensors = {name: t.float() for name, t in load_file(folder / FILE).items()}
        if bad := [name for name, t in tensors.items() if not torch.isfinite(t).all()]:
            raise ValueError(f"'{bad[0]}' holds numbers that are not finite")
    return Pieces(card, tensors)


def check_shapes(pieces: Pieces, wanted: Mapping[str, Tensor]) -> None:
    """Pieces are those that the method has on this model, no more and no fewer."""
    found = {name: list(tensor.shape) for name, tensor in pieces.tensors.items()}
    for name in {**wanted, **found}:
        shape = list(wanted[name].shape) if name in wanted else None
        if found.get(name) != shape:
            raise FewgraftError(
                f"the pieces of '{pieces.card.method}' do not fit: '{name}' is {found.get(name)}, "
                f"not {shape}",
                _again(pieces.card.method),
            )


def _again(method: str) -> str:
    return f"Learn them anew: `fewgraft train RECIPE --only {method} --out FOLDER`."


def check_pieces(
    pieces: Pieces, hyper: Mapping[str, Any], weights: str, free: Collection[str] = ()
) -> None:
    """Pieces belong to one model, and to the hyper-parameters they were learnt with.

    Those that are `free` are chosen afterwards.
    """
    card = pieces.card
    if card.weights != weights:
        raise FewgraftError(
            f"the pieces of '{card.method}' were learnt on another model ({card.stage}, "
            f"{card.weights}), not on this one ({weights})",
            _again(card.method),
        )
    names = [name for name in {**card.hyper, **hyper} if name not in free]
    if changed := [name for name in names if card.hyper.get(name) != hyper.get(name)]:
        name = changed[0]
        raise FewgraftError(
            f"the pieces of '{card.method}' were learnt with {name} = {card.hyper.get(name)}, not "
            f"{hyper.get(name)}",
            _again(card.method),
        )
