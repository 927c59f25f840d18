"""The space in which references and class means agree, which TapNet and XtarNet share.

The difference ε_k of the directions of reference and class mean is one vector per novel class. What
is orthogonal to all of them is a space in which each reference points where its class mean does;
distances there are the logits. The projector is P = I − εᵀ(εεᵀ)⁺ε. Its null space has the same
basis as the papers' singular vectors, but a pseudo-inverse also serves where ε loses rank, as it
does when a reference lies on its class mean. P is a constant: no gradient goes through it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-6  # the papers' guard against references and means of length 0
RANK = 1e-12  # eigenvalues of εεᵀ below this share of the largest count as 0


@dataclass(frozen=True)
class Projection:
    """P of E episodes, kept as the orthonormal rows that it takes away [E, N, d].

    A direction that ε lacks for full rank is a row of zeros.
    """

    rows: Tensor

    @classmethod
    def aligning(cls, references: Tensor, means: Tensor) -> "Projection":
        """The one in which references [E, N, d] and class means [E, N, d] have one direction."""
        return cls.without(_unit(references) - _unit(means))

    @classmethod
    def without(cls, error: Tensor) -> "Projection":
        """What is orthogonal to ε [E, N, d]; in double precision, as squares are taken."""
        exact = error.detach().double()
        values, vectors = torch.linalg.eigh(exact @ exact.transpose(1, 2))
        there = values > RANK * values[:, -1:].clamp(min=RANK)
        scale = torch.where(there, values.clamp(min=RANK**2).rsqrt(), 0.0)
        return cls(((vectors * scale[:, None]).transpose(1, 2) @ exact).to(error.dtype))

    def __call__(self, points: Tensor) -> Tensor:
        """P x of points [E, n, d]."""
        return points - (points @ self.rows.transpose(1, 2)) @ self.rows

    def closeness(self, queries: Tensor, centres: Tensor) -> Tensor:
        """−(q − v)ᵀP(q − v) of queries [E, Q, d] and centres [E, C, d]: [E, Q, C]."""
        queries, centres = self(queries), self(centres)
        squares = queries.square().sum(-1)[..., None] + centres.square().sum(-1)[:, None]
        return 2 * queries @ centres.transpose(1, 2) - squares


def _unit(vectors: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / (length + EPSILON)
