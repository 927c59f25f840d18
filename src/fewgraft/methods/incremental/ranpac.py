"""RanPAC: ridge regression on rectified random projections, from second moments that are kept.

McDonnell, Gong, Parvaneh, Abbasnejad, van den Hengel, "RanPAC: random projections and pre-trained
models for continual learning", NeurIPS 2023. Features x stay as they are and are projected once, by
P of random normal numbers, to more features than before. Sums over all pictures so far are kept:

    h = max(0, Pᵀ x),   G = Σ h hᵀ,   Q = Σ h yᵀ   with y one-hot,
    scores = hᵀ (G + λ I)⁻¹ Q

Kept: all of it. Ours: λ is a share of the mean of G's diagonal, chosen on validation episodes like
all hyper-parameters, where the authors hold pictures out. Supports are weighted so that a novel
class counts as many pictures as a base class: the authors' classes have equally many, and a class
of one beside classes of twenty would never be the answer.

G and Q of base classes are the same in all episodes. With H the few weighted supports [S, M] and
A = G_b + λ I, the matrix lemma (A + HᵀH)⁻¹ = A⁻¹ − A⁻¹Hᵀ (I + H A⁻¹ Hᵀ)⁻¹ H A⁻¹ adds those of an
episode. Only sums of pictures are multiplied by A⁻¹, never the many queries. Over sessions H has
the rows of all supports so far, which is what sums of G and Q would be; λ stays.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fewgraft.draws import KeyStream
from fewgraft.methods.base import Method, MethodSpec, Queries, Search, Task
from fewgraft.prototypes import members_of, prototypes

SEED = 0


@dataclass(frozen=True)
class RanPAC(Method):
    """Second moments of random features."""

    uses_base_features = True
    changes_base = True
    at_a_time = 50  # what base classes give is computed once for all of these
    search: ClassVar[Search] = {"ridge": (1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5)}

    ridge: float = 0.1  # λ beside the mean of G's diagonal
    projections: int = 2000  # M

    def fit(self, task: Task) -> "RidgeScores":
        """In double precision: G of fewer pictures than projections is singular."""
        assert task.base_features is not None
        known = task.previous if isinstance(task.previous, RidgeScores) else None
        moments = known.moments if known else self.moments(task)
        members = members_of(task.labels, task.ways, moments.base.dtype)  # [E, S, N]
        counts = members.sum(1, keepdim=True)
        weights = task.base_features.shape[1] / counts  # of the supports of a class
        targets = members * weights.sqrt()  # [E, S, N]
        support = targets.sum(-1, keepdim=True) * _hidden(task.support, moments.projection)
        novel = prototypes(task.support, task.labels, task.ways)
        found = RidgeScores(moments, support, _solved(moments.factor, support), targets, novel)
        return known.joined(found) if known else found

    def moments(self, task: Task) -> "BaseMoments":
        """What base classes give."""
        assert task.base_features is not None
        stored = task.base_features
        projection = _projection(stored.shape[-1], self.projections).to(stored.device)
        hidden = _hidden(stored, projection)  # [N_b, m, M]
        moments = torch.einsum("kmi,kmj->ij", hidden, hidden)
        moments.diagonal().add_(self.ridge * moments.diagonal().mean())
        factor = torch.linalg.cholesky(moments)
        of_base = hidden.sum(1)[: len(task.weights)]  # none where the setting has none
        return BaseMoments(task, projection, factor, _solved(factor, of_base))


@dataclass(frozen=True)
class BaseMoments:
    """What all novel classes have in common."""

    task: Task
    projection: Tensor  # P [d, M]
    factor: Tensor  # L with L Lᵀ = A [M, M]
    base: Tensor  # A⁻¹ times columns of Q for base classes [N_b, M]


@dataclass(frozen=True)
class RidgeScores:
    """Scores of all classes by the moments of base classes and of an episode."""

    moments: BaseMoments
    support: Tensor  # H [E, S, M]
    solved: Tensor  # H A⁻¹ [E, S, M]
    targets: Tensor  # weighted one-hot labels [E, S, N]
    novel: Tensor  # prototypes [E, N, d]
    grafted: int = 0  # how many of the novel classes are of earlier sessions

    @property
    def carried(self) -> Tensor:
        """Prototypes, which nothing here looks at: a next session begins with all of this."""
        return self.novel

    def joined(self, new: "RidgeScores") -> "RidgeScores":
        """With the supports and classes of one more session."""
        ours, theirs = self.targets.shape[-1], new.targets.shape[-1]
        return RidgeScores(
            self.moments,
            torch.cat([self.support, new.support], 1),
            torch.cat([self.solved, new.solved], 1),
            torch.cat([pad(self.targets, (0, theirs)), pad(new.targets, (ours, 0))], 1),
            torch.cat([self.novel, new.novel], 1),
            ours,
        )

    def logits(self, queries: Queries) -> Tensor:
        """hᵀ (A + HᵀH)⁻¹ of the sums of each class."""
        base = self.moments.base
        asked = _hidden(queries.features, self.moments.projection)
        gram = self.solved @ self.support.transpose(1, 2)  # H A⁻¹ Hᵀ [E, S, S]
        inner = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device) + gram
        towards = self.solved @ asked.transpose(1, 2)  # [E, S, Q]
        shares = torch.linalg.solve(inner, towards).transpose(1, 2)  # [E, Q, S]
        of_base = asked @ base.T - shares @ (self.support @ base.T)  # [E, Q, N_b]
        of_novel = shares @ self.targets  # by the same lemma: A⁻¹Hᵀ(I + H A⁻¹ Hᵀ)⁻¹
        scores = torch.cat([self.moments.task.strike(of_base), of_novel], dim=-1)
        return scores.to(queries.features.dtype)


def _solved(factor: Tensor, rows: Tensor) -> Tensor:
    """A⁻¹ of rows [..., M], from L with L Lᵀ = A."""
    flat = rows.flatten(0, -2)
    return torch.cholesky_solve(flat.T, factor).T.reshape(rows.shape)


def _projection(features: int, projections: int) -> Tensor:
    """P [d, M] in double precision, the same on all machines and in all episodes."""
    words = KeyStream(SEED, features).keys(features * projections)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) / 2**53
    normal: Tensor = torch.special.ndtri(torch.from_numpy(uniform))
    return normal.view(features, projections)


def _hidden(features: Tensor, projection: Tensor) -> Tensor:
    """h of features [..., d]."""
    return (features.double() @ projection).relu()


METHODS = (
    MethodSpec(
        "ranpac",
        "RanPAC",
        RanPAC(),
        "pre-trained",
        rank=8,
        regular=False,
        remark="sees twenty stored pictures per base class",
    ),
)
