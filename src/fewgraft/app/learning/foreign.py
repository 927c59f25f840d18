"""Photos that are of no class: how many of them are answered "unknown"."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewgraft.app.features.embedding import Embeds, Photo
from fewgraft.model import CosineModel


@dataclass(frozen=True)
class ForeignShare:
    """What became of foreign photos."""

    photos: int
    rejected: int  # answered "unknown"
    auroc: float | None  # how well the best score tells them from known photos; None: no such photo


def judge_foreign(
    model: CosineModel, embed: Embeds, photos: Sequence[Photo], known: Tensor
) -> ForeignShare | None:
    """The share of foreign photos that the model rejects; `known` are best logits [n] of others."""
    done = embed(photos, "foreign photos")
    if not done.kept:
        return None
    with torch.inference_mode():
        best = model.classify(done.tensor()).amax(-1)
    limit = model.card.unknown
    rejected = int((best < limit.threshold).sum()) if limit else 0
    return ForeignShare(len(best), rejected, auroc(known, best) if len(known) else None)


def auroc(known: Tensor, foreign: Tensor) -> float:
    """How well a score tells known photos [n] from foreign ones [m]: 1 is always, 0.5 by chance."""
    ordered = known.sort().values
    below = torch.searchsorted(ordered, foreign)
    not_above = torch.searchsorted(ordered, foreign, right=True)
    return 1 - (below + not_above).double().mean().item() / (2 * len(known))  # a tie is half
