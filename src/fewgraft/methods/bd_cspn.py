"""BD-CSPN: prototypes rectified with U, each picture wholly for the class it resembles most.

Liu, Song, Qin, "Prototype rectification for few-shot learning", ECCV 2020. A mean over few pictures
is off in two ways, and unlabelled pictures of the same classes correct both. U as a whole lies
elsewhere than the support, so it is moved by the difference of their means; then every unlabelled
picture takes its nearest class as its label, and a class becomes the mean of its pictures, labelled
and pseudo-labelled, where those near the first prototype count more. On directions x:

    ξ = mean(S) − mean(U),   x ← x + ξ for x in U
    w_i,n = exp(ε cos(x_i, p_n)) / Σ_j exp(ε cos(x_j, p_n))   over the pictures of class n
    p_n ← Σ_i w_i,n x_i

The details are easyfsl's, so that both give the same answers (benchmarks/peers.py): all of U takes
part, where the paper takes the surest pictures of each class (`surest`); ε is 1, where the paper
has 10 (`sharpness`); and queries are answered where they are, not moved by ξ. There is no place for
base classes in it. Later code, whose figures are often quoted, has another formula:
transductive/bd_cspn_code.py.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.prototypes import TINY, directions, members_of, support_sums


@dataclass(frozen=True)
class BiasDiminishing(Method):
    """One step of hard assignment and weighted re-estimation, after the shift."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"sharpness": (0.1, 0.3, 1.0, 3.0, 10.0)}

    sharpness: float = 1.0  # ε
    shift: bool = True  # move U by ξ
    surest: int | None = None  # so many pictures of U per class take part, the nearest; None: all

    def fit(self, task: Task) -> NovelWeights:
        """An empty unlabelled set leaves the prototypes as they are."""
        own, _ = support_sums(task.support, task.labels, task.ways)
        novel = directions(own)
        if task.unlabelled.shape[1] == 0:
            return NovelWeights(novel, task.gamma)
        support, unlabelled = ShiftedFeatures(task.support), ShiftedFeatures(task.unlabelled)
        if self.shift:
            mean = own.sum(1, keepdim=True) / task.support.shape[1]
            unlabelled = unlabelled.to(mean)
        cosines = unlabelled.cosines(novel)
        guessed = self._sure(cosines, cosines == cosines.amax(1, keepdim=True))
        labelled = members_of(task.labels, task.ways, novel.dtype).transpose(1, 2)
        total = unlabelled.weighted_sums(self._weights(cosines, guessed))
        total = total + support.weighted_sums(self._weights(support.cosines(novel), labelled))
        return NovelWeights(total, task.gamma)  # sums are as good as means: a weight has no length

    def _sure(self, cosines: Tensor, guessed: Tensor) -> Tensor:
        """The surest of the pictures guessed to be of a class [E, N, U]."""
        if self.surest is None or self.surest >= guessed.shape[-1]:
            return guessed
        nearest = cosines.where(guessed, -torch.inf)
        least = nearest.topk(self.surest, -1).values[..., -1:]
        return guessed & (nearest >= least)

    def _weights(self, cosines: Tensor, members: Tensor) -> Tensor:
        """How much each picture counts for its own class, up to a factor a class [E, N, U]."""
        return (self.sharpness * cosines).exp() * members


@dataclass(frozen=True)
class ShiftedFeatures:
    """x + ξ of directions x, never written out: writing them takes most of the time.

    Pictures come last in all that has few classes: long rows are what a processor likes.
    """

    pictures: Tensor  # x [E, U, d]
    shift: Tensor | None = None  # ξ [E, 1, d]

    def to(self, mean: Tensor) -> Self:
        """ShiftedFeatures so that their mean is `mean` [E, 1, d]."""
        return replace(self, shift=mean - self.pictures.mean(1, keepdim=True))

    def cosines(self, weights: Tensor) -> Tensor:
        """With unit weights [E, N, d] → [E, N, U]."""
        products = weights @ self.pictures.transpose(1, 2)
        if self.shift is None:
            return products
        # For a direction x: (x + ξ)·w = x·w + ξ·w, and ‖x + ξ‖² = 1 + 2 x·ξ + ‖ξ‖²
        products = products + (weights * self.shift).sum(-1, keepdim=True)
        along = self.shift @ self.pictures.transpose(1, 2)
        squares = 2 * along + (1 + self.shift.square().sum(-1, keepdim=True))
        return products * squares.clamp(min=TINY).rsqrt()

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """Of what these are, with weights [E, N, U] → [E, N, d]."""
        sums = weights @ self.pictures
        return sums if self.shift is None else sums + weights.sum(-1, keepdim=True) * self.shift


METHODS = (
    MethodSpec("bd-cspn", "BD-CSPN", BiasDiminishing(), "algorithm-1", rank=12, joint=False),
)
