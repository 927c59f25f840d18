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

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.prototypes import (
    TINY,
    cosine_logits,
    inverse_length,
    members_of,
    prototypes,
    weighted_sums,
)


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
        support, scale = task.support, inverse_length(task.support)
        mean = mean_direction(support, scale) if self.shift else None
        pile = MovedPile.of(task.unlabelled, task.inverse, mean)
        cosines = pile.cosines(novel)
        nearest = cosines == cosines.amax(1, keepdim=True)
        guessed = (self.sharpness * cosines).exp() * nearest  # [E, N, U]
        labelled = cosine_logits(support, novel, self.sharpness, scale).exp()
        labelled = labelled * members_of(task.labels, task.ways, support.dtype)  # [E, S, N]
        total = pile.weighted_sums(guessed) + weighted_sums(labelled, support, scale)
        return NovelWeights(total, task.gamma)  # sums are as good as means: a weight has no length


@dataclass(frozen=True)
class MovedPile:
    """The pile's directions x/‖x‖ + ξ, never written out: writing them takes most of the time.

    Pictures come last in all that has few classes: long rows are what a processor likes.
    """

    pictures: Tensor  # x [E, U, d]
    scale: Tensor  # 1/‖x‖ [E, 1, U]
    shift: Tensor  # ξ [E, 1, d]

    @classmethod
    def of(cls, pictures: Tensor, inverse: Tensor | None, mean: Tensor | None) -> Self:
        """Moved so that the mean direction is `mean` [E, 1, d], or not moved.

        The inverse lengths [E, U, 1] may be known already.
        """
        inverse = inverse_length(pictures) if inverse is None else inverse
        own_mean = mean_direction(pictures, inverse)
        shift = torch.zeros_like(own_mean) if mean is None else mean - own_mean
        return cls(pictures, inverse.transpose(1, 2), shift)

    def cosines(self, weights: Tensor) -> Tensor:
        """With unit weights [E, N, d] → [E, N, U], from products with the weights and with ξ."""
        vectors = torch.cat([weights, self.shift], dim=1)
        shifts = (vectors * self.shift).sum(-1, keepdim=True)  # [E, N+1, 1]
        products = torch.addcmul(shifts, vectors @ self.pictures.transpose(1, 2), self.scale)
        # ‖x + ξ‖² = 1 + 2 (x + ξ)·ξ − ‖ξ‖² for a direction x
        squares = 2 * products[:, -1:] + (1 - shifts[:, -1:])
        return products[:, :-1] * squares.clamp(min=TINY).rsqrt()

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """Σ_i w_i,n (x_i + ξ) for weights [E, N, U] → [E, N, d]."""
        return (weights * self.scale) @ self.pictures + weights.sum(-1, keepdim=True) * self.shift


def mean_direction(features: Tensor, inverse: Tensor) -> Tensor:
    """Of features [E, U, d] with inverse lengths [E, U, 1] → [E, 1, d]."""
    return weighted_sums(inverse, features, None) / features.shape[1]


METHODS = (
    MethodSpec("bd-cspn", "BD-CSPN", BiasDiminishing(), "algorithm-1", rank=11, joint=False),
)
