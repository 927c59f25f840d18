"""Soft k-means, plain and masked: the classic reference of semi-supervised few-shot learning.

Ren et al., "Meta-learning for semi-supervised few-shot classification", ICLR 2018. Every
unlabelled picture joins each prototype by its softmax over squared distances. The masked form lets
pictures count less that are far from a prototype, so that distractors (classes that the episode
does not have) do little harm; there the paper learns threshold and slope of the mask with a small
network during meta-training, here they are two hyper-parameters.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.prototypes import class_sums, directions, support_sums


@dataclass(frozen=True)
class SoftKMeans(Method):
    """One or more steps of soft assignment and re-estimation."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"steps": (1, 2, 3, 5, 10), "scale": (5.0, 10.0, 20.0)}

    steps: int = 1
    scale: float = 10.0  # of the squared distances between directions

    def fit(self, task: Task) -> NovelWeights:
        """Base classes, if there are any, take no part in the assignment."""
        unlabelled = task.unlabelled
        own, _ = support_sums(task.support, task.labels, task.ways)
        novel = directions(own)
        for _ in range(self.steps if unlabelled.shape[1] else 0):
            distances = 2 - 2 * unlabelled @ novel.transpose(1, 2)  # [E, U, N], squared
            weights = (-self.scale * distances).softmax(-1) * self.mask(distances)
            novel = directions(own + class_sums(weights, unlabelled))  # of sums as of means
        return NovelWeights(novel, task.gamma)

    def mask(self, distances: Tensor) -> Tensor:
        """How much a picture counts for each class at all [E, U, N]."""
        return torch.ones_like(distances)


@dataclass(frozen=True)
class MaskedSoftKMeans(SoftKMeans):
    """Pictures far from a prototype, by the standards of that prototype, hardly count."""

    search: ClassVar[Search] = {
        **SoftKMeans.search,
        "threshold": (0.6, 0.8, 1.0, 1.2),
        "slope": (5.0, 20.0),
    }

    threshold: float = 1.0  # in mean distances to the prototype
    slope: float = 5.0

    def mask(self, distances: Tensor) -> Tensor:
        """A sigmoid that falls at the threshold."""
        mean = distances.mean(1, keepdim=True).clamp(min=torch.finfo(distances.dtype).tiny)
        return torch.sigmoid(self.slope * (self.threshold - distances / mean))


METHODS = (
    MethodSpec("soft-k-means", "Soft k-means", SoftKMeans(), "algorithm-1", rank=10, joint=False),
    MethodSpec(
        "masked-soft-k-means",
        "Masked soft k-means",
        MaskedSoftKMeans(),
        "algorithm-1",
        rank=11,
        joint=False,
    ),
)
