"""Completion from base classes: prototypes completed by what similar base classes look like.

Zhang, Li, Ye, Huang, Zhang, "Prototype completion with primitive knowledge for few-shot learning",
CVPR 2021. One or five pictures do not show all of a class. The paper completes their mean with what
is known of the attributes that the class shares with base classes, and fuses both by means of U. It
needs a list of parts and attributes for every base and novel class (WordNet) and word vectors for
all of them (GloVe): without these the method cannot be given. Here base classes themselves take the
place of attributes. With p a class's prototype, w_b the means of the base classes most like it, and
an encoder and a decoder that are learnt,

    p̂ = p + decoder(encoder(p) + Σ_b a_b encoder(w_b)),   a = softmax over b of κ cos(p, w_b)

Training descends on ‖p̂ − the mean of many pictures of the class‖², from prototypes of so many
shots; a base class is never its own neighbour. The decoder adds to p, and begins at 0: few classes
teach it, and nothing learnt leaves the prototype as it is.

The fusion is the paper's. For p and for p̂ each, pictures of U join classes by softmax over classes
of (scale · cos); the supports stay where they are. Means m and variances v per feature follow, and

    w = (m₁ v₂ + m₂ v₁) / (v₁ + v₂)

answers by cosine. p̂ = p is one step of soft k-means. Left out: the episodes on which the paper
goes on training all of it. Each query is answered alone. It assumes no balance of classes. There is
no place for base classes in the answer.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, linear

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import LearntTensors, MethodSpec, NovelWeights, Queries, Search, Task
from fewgraft.methods.trained import TrainedMethod
from fewgraft.prototypes import class_sums, direction_logits, directions, members_of, prototypes

SHARPNESS = 10.0  # κ before training
LEAST = 1e-12  # of a variance


@dataclass(frozen=True)
class BaseCompletion(TrainedMethod):
    """How many base classes complete a prototype, and how sharply U is shared out."""

    uses_unlabelled = True
    uses_base_features = True
    pieces = "completion"
    search: ClassVar[Search] = {"scale": (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)}

    neighbours: int = 10  # base classes
    scale: float = 10.0

    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """A decoder that adds nothing yet."""
        del gamma, shots
        d, h = weights.shape[1], weights.shape[1] // 2
        return {
            "encoder": torch.randn(h, d, generator=rng) * math.sqrt(2 / d),
            "encoder_bias": torch.zeros(h),
            "decoder": torch.randn(h, h, generator=rng) * math.sqrt(2 / h),
            "decoder_bias": torch.zeros(h),
            "out": torch.zeros(d, h),
            "out_bias": torch.zeros(d),
            "sharpness": torch.tensor(SHARPNESS),  # κ
        }

    def fit(self, task: Task) -> NovelWeights:
        """Fuse the classes as the prototypes see them with those as the completed ones do."""
        novel = prototypes(task.support, task.labels, task.ways)
        seen = torch.cat([task.support, task.unlabelled], 1).double()
        members = members_of(task.labels, task.ways, seen.dtype)
        parts = [
            moments(seen, torch.cat([members, self.shares(task, centres)], 1))
            for centres in (novel, self.completed(task, novel))
        ]
        return NovelWeights(directions(fused(*parts)).to(novel.dtype), task.gamma)

    def shares(self, task: Task, centres: Tensor) -> Tensor:
        """How much each picture of U is of each class [E, U, N], by centres [E, N, d]."""
        return direction_logits(task.unlabelled, centres, self.scale).softmax(-1).double()

    def completed(self, task: Task, novel: Tensor) -> Tensor:
        """p̂ [E, N, d] of prototypes [E, N, d]."""
        learnt = self.learnt(task)
        if task.base_features is None:
            raise FewgraftError("completion needs features of base/train, and the task has none")
        base = directions(task.base_features.mean(1))  # w [N_b, d]
        scores = task.strike(learnt["sharpness"] * novel @ base.T)  # [E, N, N_b]
        best = scores.topk(min(self.neighbours, len(base)), -1)
        attention = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1))
        code = encoded(novel, learnt) + attention @ encoded(base, learnt)
        hidden = leaky_relu(linear(code, learnt["decoder"], learnt["decoder_bias"]))
        return novel + linear(hidden, learnt["out"], learnt["out_bias"])

    def loss(
        self, task: Task, queries: Queries, labels: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """How far completed prototypes are from the mean of their class's queries."""
        del rng
        novel = prototypes(task.support, task.labels, task.ways)
        true = prototypes(queries.features, labels, task.ways)
        completed = self.completed(task, novel)
        logits = direction_logits(queries.features, completed, task.gamma)
        return (completed - true).square().sum(-1).mean(), logits


def encoded(features: Tensor, learnt: LearntTensors) -> Tensor:
    """The encoder's code [..., d/2] of features [..., d]."""
    return leaky_relu(linear(features, learnt["encoder"], learnt["encoder_bias"]))


def moments(features: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances [E, N, d] of features [E, n, d] with weights [E, n, N]."""
    total = weights.sum(1)[..., None]
    mean = class_sums(weights, features) / total
    square = class_sums(weights, features.square()) / total
    return mean, (square - mean.square()).clamp(min=LEAST)


def fused(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """The mean of two Gaussians' product, from means and variances."""
    (mean, variance), (other, of_other) = first, second
    return (mean * of_other + other * variance) / (variance + of_other)


METHODS = (
    MethodSpec(
        "completion",
        "Completion from base classes",
        BaseCompletion(),
        "algorithm-1",
        rank=27,
        joint=False,
    ),
)
