"""FeCAM: the nearest class mean, each distance measured by the spread of that class.

Goswami, Liu, Twardowski, van de Weijer, "FeCAM: exploiting the heterogeneity of class distributions
in exemplar-free continual learning", NeurIPS 2023. The network stays as it is. Per class a mean μ
and a covariance Σ are kept, of rooted features x̃ = √x. With V₁ the mean of Σ on its diagonal and V₂
off it:

    Σ_s = Σ + γ₁ V₁ I + γ₂ V₂ (1 − I),   Σ̂_ij = Σ_s,ij / √(Σ_s,ii Σ_s,jj)
    D(x, y) = (x̃/‖x̃‖ − μ_y/‖μ_y‖)ᵀ Σ̂_y⁻¹ (x̃/‖x̃‖ − μ_y/‖μ_y‖)

The answer is the class of least D. Kept: all of it, with γ₁ = γ₂. Ours: roots keep the sign, since
features of some networks are negative. One picture has no covariance and five have hardly one, so
that a novel class has the mean of those of the base classes. Over sessions base classes stay as
they are, and prototypes add up.

Few pictures m of a base class make a Σ of rank below m, so that Σ_s = a I + Pᵀ C P with a = γ₁ V₁ −
γ₂ V₂, P [m+1, d] and C = diag(1, …, 1, ±1). With v = x̃/‖x̃‖ − μ/‖μ‖, each component times √Σ_s,ii,
the matrix lemma gives D = (‖v‖² − (Pv)ᵀ (a C + P Pᵀ)⁻¹ (Pv)) / a.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, Queries, Search, Task
from fewgraft.methods.transductive.nearness import squared_distances
from fewgraft.prototypes import directions, join_logits, prototypes


@dataclass(frozen=True)
class FeCAM(Method):
    """Mahalanobis distances with a covariance per base class."""

    uses_base_features = True
    changes_base = True
    at_a_time = 50  # what base classes give is computed once for all of these
    search: ClassVar[Search] = {"shrinkage": (0.3, 1.0, 3.0, 10.0, 100.0, 1e3, 1e4)}

    shrinkage: float = 1.0  # γ₁ = γ₂

    def fit(self, task: Task) -> "ClassDistances":
        """Means and covariances, in double precision: those of few pictures are nearly singular."""
        novel = prototypes(rooted(task.support), task.labels, task.ways)
        if isinstance(task.previous, ClassDistances):
            return task.previous.joined(novel)
        assert task.base_features is not None
        base, present = rooted(task.base_features), len(task.weights)  # 0: novel classes only
        means = base.mean(1)
        residuals = (base - means[:, None]) / max(1, base.shape[1] - 1) ** 0.5
        shared = torch.einsum("kmi,kmj->ij", residuals, residuals) / len(residuals)
        spreads = [self._spread(own) for own in residuals[:present]]
        return ClassDistances(
            task, directions(means[:present]), spreads, novel, self._factor(shared)
        )

    def _spread(self, residuals: Tensor) -> "Spread":
        """Of a class with Σ = RᵀR for residuals R [m, d]."""
        d, variances, total = residuals.shape[1], residuals.square().sum(0), residuals.sum(1)
        beside = (total.square().sum() - variances.sum()) / (d * (d - 1))  # V₂
        level = self.shrinkage * (variances.mean() - beside)  # a
        even = (self.shrinkage * beside.abs()).sqrt().expand(1, d)
        rows = torch.cat([residuals, even])  # P
        inner = rows @ rows.T
        signs = torch.ones_like(inner[0])
        signs[-1] = 1 if beside >= 0 else -1
        values, vectors = torch.linalg.eigh(inner + level * signs.diag())
        scale = variances + level + self.shrinkage * beside  # the diagonal of Σ_s
        return Spread(scale / level, vectors.T @ rows * scale.sqrt(), 1 / (level * values))

    def _factor(self, covariance: Tensor) -> Tensor:
        """L with L Lᵀ = Σ̂ of a covariance [d, d]."""
        d = len(covariance)
        own = torch.eye(d, dtype=covariance.dtype, device=covariance.device)
        diagonal = covariance.trace()
        beside = (covariance.sum() - diagonal) / (d * (d - 1))
        shrunk = covariance + self.shrinkage * (diagonal / d * own + beside * (1 - own))
        spread = shrunk.diagonal().sqrt()
        factor: Tensor = torch.linalg.cholesky(shrunk / spread[:, None] / spread)
        return factor


@dataclass(frozen=True)
class Spread:
    """Σ̂⁻¹ of one class, as a diagonal less a few directions."""

    diagonal: Tensor  # [d]
    rows: Tensor  # [m+1, d]
    weights: Tensor  # [m+1]

    def squared(self, apart: Tensor) -> Tensor:
        """vᵀ Σ̂⁻¹ v of vectors [..., d] → [...]."""
        few = (apart @ self.rows.T).square() @ self.weights
        return apart.square() @ self.diagonal - few


@dataclass(frozen=True)
class ClassDistances:
    """Squared distances, negative: the nearest class has the largest logit."""

    task: Task
    means: Tensor  # directions of class means [N_b, d]
    spreads: Sequence[Spread]  # of each base class
    novel: Tensor  # directions of prototypes [E, N, d]
    shared: Tensor  # L of all novel classes [d, d]
    grafted: int = 0  # how many of the novel classes are of earlier sessions
    goes_on: bool = False  # whether base logits are distances already, those of session 0

    @property
    def carried(self) -> Tensor:
        """What the novel classes are in a next session: rooted, as all means here."""
        return self.novel.to(self.task.weights.dtype)

    def joined(self, novel: Tensor) -> "ClassDistances":
        """With the classes of one more session, directions of prototypes [E, N, d]."""
        every = torch.cat([self.novel, novel], 1)
        return dataclasses.replace(self, novel=every, grafted=self.novel.shape[1], goes_on=True)

    def logits(self, queries: Queries) -> Tensor:
        """All columns anew, unless they are distances already."""
        asked = directions(rooted(queries.features))
        known = queries.base_logits[..., : len(self.means)]
        base = known if self.goes_on or not self.spreads else self._of_base(asked)
        novel = -squared_distances(self._solved(asked), self._solved(self.novel))
        return join_logits(base.to(novel.dtype), novel).to(queries.features.dtype)

    def _of_base(self, asked: Tensor) -> Tensor:
        """One base class after another: all at once would not fit into memory."""
        base = [
            -spread.squared(asked - mean)
            for mean, spread in zip(self.means, self.spreads, strict=True)
        ]
        return self.task.strike(torch.stack(base, dim=-1))

    def _solved(self, rows: Tensor) -> Tensor:
        """L⁻¹ of vectors [..., d]."""
        flat = rows.flatten(0, -2)
        found: Tensor = torch.linalg.solve_triangular(self.shared.T, flat, upper=True, left=False)
        return found.view(rows.shape)


def rooted(features: Tensor) -> Tensor:
    """The signed square root of each feature, in double precision."""
    return features.double().abs().sqrt() * features.sign()


METHODS = (
    MethodSpec(
        "fecam",
        "FeCAM",
        FeCAM(),
        "pre-trained",
        rank=8,
        regular=False,
        remark="sees twenty stored pictures per base class",
    ),
)
