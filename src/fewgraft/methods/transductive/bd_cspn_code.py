"""BD-CSPN as code has it: prototypes rectified with U, not quite by the paper's formula.

Liu, Song, Qin, "Prototype rectification for few-shot learning", ECCV 2020, as re-implemented by
Ziko et al. (LaplacianShot, ICML 2020) and Veilleux et al. ("Realistic evaluation of transductive
few-shot learning", NeurIPS 2021), whose published rows it is. `bd-cspn` follows the paper.
Features are centred with the mean of the base classes and made directions. On S and on U moved to
the mean of S, with p_n the means of the support:

    w_i = softmax over classes of ε cos(x_i, p_n),   ε = 10
    p_n ← mean of w_i,n x_i over the pictures i with the largest weight at n

It differs from the paper in three ways. Supports go where they are nearest, whatever their label;
weights are over classes, not over pictures; and they are not divided by their sum, so that
prototypes have different lengths, which matter to the Euclidean distances that answer. Queries are
answered where they are, not moved. A class that no picture is nearest to keeps its p_n. U moved to
the mean of S means that both have the same mix of classes.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Task
from fewgraft.methods.transductive.nearness import squared_distances
from fewgraft.prototypes import class_sums, direction_logits, directions, members_of, prototypes


@dataclass(frozen=True)
class RectifiedByClass(Method):
    """One step of hard assignment and weighted re-estimation."""

    uses_unlabelled = True
    uses_base_features = True
    search: ClassVar[Search] = {"sharpness": (1.0, 3.0, 10.0, 30.0, 100.0)}

    sharpness: float = 10.0  # ε

    def fit(self, task: Task) -> "NearestCentred | NovelWeights":
        """An empty unlabelled set leaves the prototypes as they are."""
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        mean = centre(task)
        support, unlabelled = (
            directions(part.double() - mean) for part in (task.support, task.unlabelled)
        )
        unlabelled = unlabelled + shift(support, unlabelled)
        novel = rectified(support, task.labels, task.ways, unlabelled, self.sharpness)
        return NearestCentred(mean, novel)


def centre(task: Task) -> Tensor:
    """The mean of the base pictures, or that of support and U, in double precision [E, 1, d]."""
    if task.base_features is not None:
        return task.base_features.double().mean((0, 1)).expand(len(task), 1, -1)
    return torch.cat([task.support, task.unlabelled], 1).double().mean(1, keepdim=True)


def shift(support: Tensor, unlabelled: Tensor) -> Tensor:
    """From the mean of U [E, U, d] to that of the support [E, S, d] → [E, 1, d]."""
    return support.mean(1, keepdim=True) - unlabelled.mean(1, keepdim=True)


def rectified(
    support: Tensor, labels: Tensor, ways: int, unlabelled: Tensor, sharpness: float
) -> Tensor:
    """Prototypes [E, N, d] from support [E, S, d], labels [E, S] and U [E, U, d], moved already."""
    first = prototypes(support, labels, ways, normalise=False)
    pictures = torch.cat([support, unlabelled], 1)
    weights = direction_logits(directions(pictures), first, sharpness).softmax(-1)
    nearest = members_of(weights.argmax(-1), ways, weights.dtype)
    count = nearest.sum(1)[..., None]
    means = class_sums(weights * nearest, pictures) / count.clamp(min=1)
    return torch.where(count > 0, means, first)


@dataclass(frozen=True)
class NearestCentred:
    """Prototypes among centred directions."""

    mean: Tensor  # [E, 1, d]
    novel: Tensor  # [E, N, d]

    def logits(self, queries: Queries) -> Tensor:
        """The negative squared distances."""
        centred = directions(queries.features.double() - self.mean)
        return -squared_distances(centred, self.novel).to(queries.features.dtype)


METHODS = (
    MethodSpec(
        "bd-cspn-code",
        "BD-CSPN, as code has it",
        RectifiedByClass(),
        "algorithm-1",
        rank=13,
        joint=False,
    ),
)
