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

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.prototypes import TINY, SupportSums, inverse_length, members_of


@dataclass(frozen=True)
class BiasDiminishing(Method):
    """One step of hard assignment and weighted re-estimation, after the shift."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"sharpness": (0.0, 1.0, 3.0, 10.0), "shift": (True, False)}

    sharpness: float = 1.0  # ε
    shift: bool = True  # move the pile by ξ

    def fit(self, task: Task) -> NovelWeights:
        """An empty pile leaves the prototypes as they are."""
        support = Directions.of(task.support)
        inverse = support.scale.transpose(1, 2)
        own = SupportSums.of(task.support, task.labels, task.ways, inverse=inverse)
        novel = own.prototypes()
        if task.unlabelled.shape[1] == 0:
            return NovelWeights(novel, task.gamma)
        pile = Directions.of(task.unlabelled, task.inverse)
        if self.shift:
            pile = pile.moved_to(own.total.sum(1, keepdim=True) / task.support.shape[1])
        cosines = pile.cosines(novel)
        guessed = cosines == cosines.amax(1, keepdim=True)
        labelled = members_of(task.labels, task.ways, novel.dtype).transpose(1, 2)
        total = pile.weighted_sums(self._weights(cosines, guessed))
        total = total + support.weighted_sums(self._weights(support.cosines(novel), labelled))
        return NovelWeights(total, task.gamma)  # sums are as good as means: a weight has no length

    def _weights(self, cosines: Tensor, members: Tensor) -> Tensor:
        """How much each picture counts for its own class, up to a factor a class [E, N, U]."""
        return (self.sharpness * cosines).exp() * members


@dataclass(frozen=True)
class Directions:
    """x/‖x‖ + ξ of pictures, never written out: writing them takes most of the time.

    Pictures come last in all that has few classes: long rows are what a processor likes.
    """

    pictures: Tensor  # x [E, U, d]
    scale: Tensor  # 1/‖x‖ [E, 1, U]
    shift: Tensor | None = None  # ξ [E, 1, d]

    @classmethod
    def of(cls, pictures: Tensor, inverse: Tensor | None = None) -> Self:
        """Not moved. The inverse lengths [E, U, 1] may be known already."""
        inverse = inverse_length(pictures) if inverse is None else inverse
        return cls(pictures, inverse.transpose(1, 2))

    def moved_to(self, mean: Tensor) -> Self:
        """Moved so that the mean of these directions is `mean` [E, 1, d]."""
        own_mean = self.scale @ self.pictures / self.pictures.shape[1]
        return replace(self, shift=mean - own_mean)

    def cosines(self, weights: Tensor) -> Tensor:
        """With unit weights [E, N, d] → [E, N, U]."""
        products = self._products(weights)
        if self.shift is None:
            return products
        # For a direction x: (x + ξ)·w = x·w + ξ·w, and ‖x + ξ‖² = 1 + 2 x·ξ + ‖ξ‖²
        products = products + (weights * self.shift).sum(-1, keepdim=True)
        squares = 2 * self._products(self.shift) + (1 + self.shift.square().sum(-1, keepdim=True))
        return products * squares.clamp(min=TINY).rsqrt()

    def weighted_sums(self, weights: Tensor) -> Tensor:
        """Of what these are, with weights [E, N, U] → [E, N, d]."""
        sums = (weights * self.scale) @ self.pictures
        return sums if self.shift is None else sums + weights.sum(-1, keepdim=True) * self.shift

    def _products(self, vectors: Tensor) -> Tensor:
        """x/‖x‖ with vectors [E, K, d] → [E, K, U]."""
        return vectors @ self.pictures.transpose(1, 2) * self.scale


METHODS = (
    MethodSpec("bd-cspn", "BD-CSPN", BiasDiminishing(), "algorithm-1", rank=11, joint=False),
)
