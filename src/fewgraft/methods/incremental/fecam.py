"""FeCAM: the nearest class mean, each distance measured by the spread of that class.

Goswami, Liu, Twardowski, van de Weijer, "FeCAM: exploiting the heterogeneity of class distributions
in exemplar-free continual learning", NeurIPS 2023. The network stays as it is. Per class a mean μ
and a covariance Σ are kept, of rooted features x̃ = √x. With V₁ the mean of Σ on its diagonal and V₂
off it:

    Σ_s = Σ + γ₁ V₁ I + γ₂ V₂ (1 − I),   Σ̂_ij = Σ_s,ij / √(Σ_s,ii Σ_s,jj)
    D(x, y) = (x̃/‖x̃‖ − μ_y/‖μ_y‖)ᵀ Σ̂_y⁻¹ (x̃/‖x̃‖ − μ_y/‖μ_y‖)

The answer is the class of least D. Kept: all of it, with γ₁ = γ₂. Ours: roots keep the sign, since
features of some networks are negative. One picture has no covariance and five have hardly one, so
that a novel class has the mean of those of the base classes.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, Queries, Search, Task
from fewgraft.prototypes import directions, join_logits, prototypes


@dataclass(frozen=True)
class FeCAM(Method):
    """Mahalanobis distances with a covariance per base class."""

    uses_base_features = True
    search: ClassVar[Search] = {"shrinkage": (0.3, 1.0, 3.0, 10.0, 100.0)}

    shrinkage: float = 1.0  # γ₁ = γ₂

    def fit(self, task: Task) -> "ClassDistances":
        """Means and covariances, in double precision: those of few pictures are nearly singular."""
        assert task.base_features is not None
        base, present = rooted(task.base_features), len(task.weights)  # 0: novel classes only
        novel = prototypes(rooted(task.support), task.labels, task.ways)
        means = base.mean(1)
        residuals = base - means[:, None]
        covariances = residuals.transpose(1, 2) @ residuals / max(1, base.shape[1] - 1)
        return ClassDistances(
            task,
            directions(means[:present]),
            self._factors(covariances[:present]),
            novel,
            self._factors(covariances.mean(0)),
        )

    def _factors(self, covariances: Tensor) -> Tensor:
        """L with L Lᵀ = Σ̂ of covariances [..., d, d]."""
        d = covariances.shape[-1]
        own = torch.eye(d, dtype=covariances.dtype, device=covariances.device)
        diagonal = covariances.diagonal(dim1=-2, dim2=-1).sum(-1)
        beside = (covariances.sum((-2, -1)) - diagonal) / (d * (d - 1))
        added = (diagonal / d)[..., None, None] * own + beside[..., None, None] * (1 - own)
        shrunk = covariances + self.shrinkage * added
        spread = shrunk.diagonal(dim1=-2, dim2=-1).sqrt()
        factors: Tensor = torch.linalg.cholesky(shrunk / spread[..., None] / spread[..., None, :])
        return factors


@dataclass(frozen=True)
class ClassDistances:
    """Squared distances, negative: the nearest class has the largest logit."""

    task: Task
    base: Tensor  # directions of class means [N_b, d]
    factors: Tensor  # L of each [N_b, d, d]
    novel: Tensor  # directions of prototypes [E, N, d]
    shared: Tensor  # L of all novel classes [d, d]

    def logits(self, queries: Queries) -> Tensor:
        """One base class after another: all at once would not fit into memory."""
        asked = directions(rooted(queries.features))
        base = [
            -_solved(factor, asked - mean).square().sum(-1)
            for mean, factor in zip(self.base, self.factors, strict=True)
        ]
        apart = asked[:, :, None] - self.novel[:, None]  # [E, Q, N, d]
        novel = -_solved(self.shared, apart).square().sum(-1)
        scores = self.task.strike(torch.stack(base, dim=-1)) if base else queries.base_logits
        return join_logits(scores.to(novel.dtype), novel).to(queries.features.dtype)


def rooted(features: Tensor) -> Tensor:
    """The signed square root of each feature, in double precision."""
    return features.double().abs().sqrt() * features.sign()


def _solved(factor: Tensor, apart: Tensor) -> Tensor:
    """L⁻¹ of vectors [..., d]."""
    flat = apart.flatten(0, -2)
    found: Tensor = torch.linalg.solve_triangular(factor.T, flat, upper=True, left=False)
    return found.view(apart.shape)


METHODS = (MethodSpec("fecam", "FeCAM", FeCAM(), "pre-trained", rank=3, regular=False),)
