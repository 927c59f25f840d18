"""BAVARDAGE: a mixture of Gaussians in a space of N − 1 dimensions that moves with the assignment.

Hu, Pateux, Gripon, "Adaptive dimension reduction and variational inference for transductive
few-shot classification", AISTATS 2023. Features less the mean of the base classes, as directions,
are scaled along the axes of the covariance within base classes, less where it is large. Then five
rounds, from assignments r that soft k-means begins, where y are scaled features:

    μ_c = Σ r y / (Σ r + 10),   Q a basis of the differences μ_c − μ_1,   z = Q y
    β_c = 10 + Σ_i r_ic,   m_c = Σ r z / β_c,   a_c = Σ_i r_ic + 2 − K_c
    log r_c = −(τ/2)‖z − m_c‖² − (N − 1)/(2β_c) + ψ(a_c) − ψ(Σ a)

The support keeps its labels. The last two terms are the expected logarithm of the class's share,
which is inferred: unequal numbers of unlabelled pictures per class are no harm. `balanced` drops
them. A query is answered alone, with the last Q, m, β and a, as every unlabelled picture was. It
needs base classes for their covariance, and has no place for them among the answers.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Task
from fewgraft.methods.transductive.nearness import squared_distances
from fewgraft.methods.transductive.spans import spanning
from fewgraft.methods.transductive.transport import LEAST
from fewgraft.prototypes import class_sums, directions, join_logits, members_of, prototypes

PRIOR, SHARE_PRIOR = 10.0, 2.0  # β of an empty class; a of a class beyond its supports
LARGEST_SCALE, RIDGE = 5.0, 1e-6
START_ROUNDS = 5


@dataclass(frozen=True)
class VariationalMixture(Method):
    """The authors take τ = 4 or 50, by data set."""

    uses_unlabelled = True
    uses_base_features = True
    search: ClassVar[Search] = {
        "temperature": (4.0, 10.0, 25.0, 50.0),
        "start_temperature": (5.0, 10.0, 25.0, 50.0),
    }
    search_by = "coordinates"

    rounds: int = 5
    temperature: float = 4.0  # τ
    start_temperature: float = 10.0  # of soft k-means
    balanced: bool = False

    def fit(self, task: Task) -> "PlacedMixture | NovelWeights":
        """An empty unlabelled set leaves the prototypes."""
        if task.unlabelled.shape[1] == 0:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        if task.base_features is None:
            raise FewgraftError("BAVARDAGE needs features of base classes")
        base = BaseClasses.of(task.base_features)
        features = base.placed(torch.cat([task.support, task.unlabelled], 1))
        members = members_of(task.labels, task.ways, features.dtype)
        axes, scales = scaled_axes(features, base.covariance)
        fitted = self.fitted(features @ axes * scales, self.started(features, members), members)
        return PlacedMixture(base, axes * scales, fitted)

    def started(self, features: Tensor, members: Tensor) -> Tensor:
        """Assignments [E, S+U, N] by soft k-means, from labels [E, S, N] of the support."""
        supports = members.shape[1]
        assigned = pad(members, (0, 0, 0, features.shape[1] - supports))
        for _ in range(START_ROUNDS):
            size = assigned.sum(1).clamp(min=LEAST)[..., None]
            centres = class_sums(assigned, features) / size
            logits = -self.start_temperature * squared_distances(features, centres)
            assigned = torch.cat([members, logits.softmax(-1)[:, supports:]], 1)
        return assigned

    def fitted(self, features: Tensor, assigned: Tensor, members: Tensor) -> "Mixture":
        """The mixture after the rounds, from scaled features [E, S+U, d] and assignments."""
        supports = members.shape[1]
        found = self._mixture(features, assigned, members)
        for _ in range(self.rounds - 1):
            assigned = found.logits(features).softmax(-1)
            assigned = torch.cat([members, assigned[:, supports:]], 1)
            found = self._mixture(features, assigned, members)
        return found

    def _mixture(self, features: Tensor, assigned: Tensor, members: Tensor) -> "Mixture":
        sizes = assigned.sum(1)
        beta = sizes + PRIOR
        centres = class_sums(assigned, features) / beta[..., None]
        across = torch.linalg.qr((centres[:, 1:] - centres[:, :1]).transpose(1, 2))[0]
        offset = -(beta.shape[1] - 1) / (2 * beta)
        if not self.balanced:
            share = sizes + SHARE_PRIOR - members.sum(1)
            offset = offset + share.digamma() - share.sum(1, keepdim=True).digamma()
        return Mixture(across, centres @ across, offset, self.temperature)


# --- the space ---


@dataclass(frozen=True)
class BaseClasses:
    """What is needed of the base classes: where they are, and how far their pictures scatter."""

    mean: Tensor  # [d]
    covariance: Tensor  # within classes [d, d]

    @classmethod
    def of(cls, features: Tensor) -> Self:
        """From some features per class [N_b, m, d]; every class counts the same."""
        features = features.double()
        mean = features.mean((0, 1))
        placed = directions(features - mean)
        apart = placed - placed.mean(1, keepdim=True)
        scatter = apart.transpose(1, 2) @ apart
        norms = scatter.norm(dim=(1, 2), keepdim=True)
        within = (scatter / norms.clamp(min=LEAST)).mean(0) * norms.mean()
        return cls(mean, within + RIDGE * torch.eye(len(within)).to(within))

    def placed(self, features: Tensor) -> Tensor:
        """Directions of features [E, n, d], seen from the mean."""
        return directions(features.double() - self.mean)


def scaled_axes(features: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Axes [E, d, k] of the covariance in the span of features [E, n, d], and scales [E, 1, k].

    The covariance there is that of pictures that stay in the span. A direction without features
    has an axis of 0.
    """
    basis = spanning(features)
    inverse = basis.transpose(1, 2) @ torch.linalg.inv(covariance) @ basis
    empty = (basis.square().sum(1) < 0.5).to(inverse)
    values, vectors = torch.linalg.eigh(torch.linalg.inv(inverse + empty.diag_embed()))
    scales = values.clamp(min=LEAST).rsqrt().clamp(max=LARGEST_SCALE)
    return basis @ vectors, scales[:, None]


# --- the answers ---


@dataclass(frozen=True)
class Mixture:
    """Gaussians of one width in the plane of the class centres."""

    across: Tensor  # Q [E, d, N-1]
    centres: Tensor  # m [E, N, N-1]
    offset: Tensor  # all of log r but the distance [E, N]
    temperature: float

    def logits(self, features: Tensor) -> Tensor:
        """log r of scaled features [E, n, d], up to a number per picture [E, n, N]."""
        distances = squared_distances(features @ self.across, self.centres)
        return self.offset[:, None] - self.temperature / 2 * distances


@dataclass(frozen=True)
class PlacedMixture:
    """A mixture, and how a query gets to its space."""

    base: BaseClasses
    axes: Tensor  # times the scales [E, d, k]
    mixture: Mixture

    def logits(self, queries: Queries) -> Tensor:
        """Logarithms of probabilities, each query alone."""
        placed = self.base.placed(queries.features) @ self.axes
        found = self.mixture.logits(placed).log_softmax(-1)
        return join_logits(queries.base_logits, found.to(queries.features.dtype))


METHODS = (
    MethodSpec("bavardage", "BAVARDAGE", VariationalMixture(), "algorithm-1", rank=26, joint=False),
)
