"""BD-CSPN: prototypes rectified with the pile, each picture wholly for the class it resembles most.

Liu, Song, Qin, "Prototype rectification for few-shot learning", ECCV 2020. A mean over few pictures
is off in two ways, and a pile of the same classes corrects both. The pile as a whole lies elsewhere
than the support, so it is moved by the difference of their means; then every pile picture takes its
nearest class as its label, and a class becomes the mean of its pictures, labelled and
pseudo-labelled, where those near the first prototype count more. On directions x:

    ξ = mean(S) − mean(U),   x ← x + ξ for x in U
    w_i,n = exp(ε cos(x_i, p_n)) / Σ_j exp(ε cos(x_j, p_n))   over the pictures of class n
    p_n ← Σ_i w_i,n x_i

The details are easyfsl's, so that both give the same answers (benchmarks/peers.py): all pile
pictures take part, where the paper takes the surest of each class; ε is 1; and queries are answered
where they are, not moved by ξ. There is no place for base classes in it.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.prototypes import prototypes

TINY = 1e-12  # the least length that anything is divided by


@dataclass(frozen=True)
class BiasDiminishing(Method):
    """One step of hard assignment and weighted re-estimation, after the shift."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"sharpness": (0.0, 1.0, 3.0, 10.0), "shift": (True, False)}

    sharpness: float = 1.0  # ε
    shift: bool = True  # move the pile by ξ

    def fit(self, task: Task) -> NovelWeights:
        """An empty pile leaves the prototypes as they are."""
        novel = prototypes(task.support, task.labels, task.ways)
        if task.unlabelled.shape[1] == 0:
            return NovelWeights(novel, task.gamma)
        support = normalize(task.support, dim=-1)
        pile = MovedPile.of(task.unlabelled, support.mean(1, keepdim=True) if self.shift else None)
        cosines = pile.cosines(novel)
        nearest = cosines == cosines.amax(-1, keepdim=True)
        guessed = (self.sharpness * cosines).exp() * nearest  # [E, U, N]
        labelled = (self.sharpness * (support @ novel.transpose(1, 2))).exp()
        labelled = labelled * one_hot(task.labels, task.ways)  # [E, S, N]
        total = pile.weighted_sums(guessed) + labelled.transpose(1, 2) @ support
        return NovelWeights(total, task.gamma)  # sums are as good as means: a weight has no length


@dataclass(frozen=True)
class MovedPile:
    """The pile's directions x/‖x‖ + ξ, never written out: writing them takes most of the time."""

    pictures: Tensor  # x [E, U, d]
    scale: Tensor  # 1/‖x‖ [E, U, 1]
    shift: Tensor  # ξ [E, 1, d]

    @classmethod
    def of(cls, pictures: Tensor, mean: Tensor | None) -> Self:
        """Moved so that the mean direction is `mean` [E, 1, d], or not moved."""
        scale = 1 / torch.linalg.vector_norm(pictures, dim=-1, keepdim=True).clamp(min=TINY)
        own_mean = scale.transpose(1, 2) @ pictures / pictures.shape[1]
        return cls(pictures, scale, torch.zeros_like(own_mean) if mean is None else mean - own_mean)

    def cosines(self, weights: Tensor) -> Tensor:
        """With unit weights [E, N, d] → [E, U, N], from products with the weights and with ξ."""
        vectors = torch.cat([weights, self.shift], dim=1).transpose(1, 2)
        products = torch.addcmul(self.shift @ vectors, self.scale, self.pictures @ vectors)
        # ‖x + ξ‖² = 1 + 2 (x + ξ)·ξ − ‖ξ‖² for a direction x
        squares = 1 + 2 * products[..., -1:] - self.shift.square().sum(-1, keepdim=True)
        return products[..., :-1] / squares.clamp(min=TINY).sqrt()

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """Σ_i w_i,n (x_i + ξ) for weights [E, U, N] → [E, N, d]."""
        moved = weights.sum(1)[..., None] * self.shift
        return (weights * self.scale).transpose(1, 2) @ self.pictures + moved


METHODS = (
    MethodSpec("bd-cspn", "BD-CSPN", BiasDiminishing(), "algorithm-1", rank=11, joint=False),
)
