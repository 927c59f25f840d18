"""protoLP: labels propagated through prototypes, which move with the labels.

Zhu, Koniusz, "Transductive few-shot learning with prototype-based label propagation by iterative
graph refinement", CVPR 2023. The graph joins pictures to prototypes and not to each other, so that
propagation solves a system of N equations. Features are power-transformed (power.py), projected on
the first singular vectors of S ∪ U, centred by their joint mean and made directions. The prototypes
μ begin as directions of the support's means. In every step, with Y the labels of the support and
Z = [Y; P], where P is balanced transport of U to the prototypes (pt_map.py):

    L = I − Zᵀ Z diag(1/Σ_i Z_i),   F = Z (YᵀY + γL)⁻¹ YᵀY
    F ← transport of F: rows sum to 1, columns to (|S|+|U|)/N, the support keeps its labels
    μ_c ← μ_c + α (ē_c − μ_c),   ē_c the mean of S ∪ U weighted by ζF + (1 − ζ)Z

The method assumes that U holds equally many pictures of each class. Negative entries of F are 0
before its transport. `together` answers queries by a plan, as the paper does; by default each is
answered alone by −λ‖q − μ_c‖². There is no place for base classes in it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Search, Task
from fewgraft.methods.transductive.nearness import class_logits
from fewgraft.methods.transductive.power import Negatives, power_transform
from fewgraft.methods.transductive.spans import principal_axes
from fewgraft.methods.transductive.transport import (
    LEAST,
    Centres,
    equal_shares,
    scaled,
    transport_plan,
)
from fewgraft.prototypes import class_sums, directions, members_of, prototypes

PLAN_TOLERANCE, LABEL_TOLERANCE = 1e-3, 1e-2


@dataclass(frozen=True)
class PrototypePropagation(Method):
    """The authors' values for balanced tasks."""

    uses_unlabelled = True
    takes_gaps = True
    search: ClassVar[Search] = {"sharpness": (5.0, 10.0, 20.0, 40.0), "power": (0.5, 0.7, 1.0)}
    search_by = "coordinates"

    steps: int = 100
    sharpness: float = 10.0  # λ
    alpha: float = 0.2
    gamma: float = 1.0
    propagated_share: float = 0.6  # ζ
    dimensions: int = 40
    power: float = 0.5
    negatives: Negatives = "signed"
    together: bool = False

    def fit(self, task: Task) -> Centres | NovelWeights:
        """An empty unlabelled set leaves the prototypes."""
        if task.unlabelled.shape[1] == 0:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        features = self._powers(torch.cat([task.support, task.unlabelled], 1))
        there = None
        if task.present is not None:
            there = torch.cat([torch.ones_like(task.labels, dtype=torch.bool), task.present], 1)
            features = features * there[..., None]
        axes = principal_axes(features, self.dimensions)
        n = features.shape[1] if there is None else there.sum(1)[:, None, None]
        mean = (features @ axes).sum(1, keepdim=True) / n

        def place(pictures: Tensor) -> Tensor:
            return directions(self._powers(pictures) @ axes - mean)

        placed = directions(features @ axes - mean)
        members = members_of(task.labels, task.ways, placed.dtype)
        centres = self._moved(placed, members, there)
        return Centres(place, centres, self.sharpness, self.together, PLAN_TOLERANCE)

    def _powers(self, features: Tensor) -> Tensor:
        return power_transform(features.double(), self.power, self.negatives)

    def _moved(self, features: Tensor, members: Tensor, there: Tensor | None) -> Tensor:
        """Prototypes [E, N, d] of features [E, S+U, d], from labels [E, S, N] of the first S.

        Features that are not `there` [E, S+U] take no part.
        """
        supports = members.shape[1]
        taking = None if there is None else there[:, supports:]
        centres = directions(class_sums(members, features[:, :supports]))
        for _ in range(self.steps):
            logs = class_logits(features[:, supports:], centres, self.sharpness).transpose(1, 2)
            plan = transport_plan(logs, equal_shares(logs, taking), PLAN_TOLERANCE, taking)
            spread = self.propagated(members, plan, there)
            shared = torch.cat([members, plan], 1)
            weights = self.propagated_share * spread + (1 - self.propagated_share) * shared
            means = class_sums(weights, features) / weights.sum(1).clamp(min=LEAST)[..., None]
            centres = centres + self.alpha * (means - centres)
        return centres

    def propagated(self, members: Tensor, plan: Tensor, there: Tensor | None = None) -> Tensor:
        """F [E, S+U, N] after its transport, from Y [E, S, N] and P [E, U, N]."""
        shared = torch.cat([members, plan], 1)  # Z
        own = members.transpose(1, 2) @ members
        passed = shared.transpose(1, 2) @ (shared / shared.sum(1, keepdim=True).clamp(min=LEAST))
        laplacian = torch.eye(own.shape[1], dtype=own.dtype, device=own.device) - passed
        spread = shared @ torch.linalg.solve(own + self.gamma * laplacian, own)
        shares = equal_shares(shared, there)
        return scaled(spread.clamp(min=0), shares, LABEL_TOLERANCE, fixed=members)


METHODS = (
    MethodSpec(
        "proto-lp",
        "protoLP",
        PrototypePropagation(),
        "algorithm-1",
        rank=25,
        joint=False,
        balanced=True,
    ),
)
