"""Graft (ours): exemplar densities, and novel classes told apart in a space of their own.

On top of the S²I-FSL paper's refinement, and on its features (Algorithm 2). f are directions of the
last layer, g of the mid level; E_k are exemplars of base class k, Σ covariances within base classes
(`BaseKnowledge`: feature replay). S_j is the support of novel class j, u a picture of U.

1. Scores. With k(x, y) = exp(κ (x·y − 1)), and 0 for a picture and itself, a class is also where
   its pictures lie, not only a direction:

    D_k(x) = log mean_{e ∈ E_k} k(x, e)      D_j(x; r) = log Σ_i r_ij k(x, x_i) / Σ_i r_ij
    β_k(x) = γ cos(x, w_k) + η D_k(x)        ν_j(x) = γ cos(x, p_j) + η D_j(x; r) + b

   Wrong base classes score otherwise than wrong novel ones: there are more of them, and a trained
   weight scores less on strangers than a mean of features does. Base classes have both, a weight
   and a mean m_k of exemplars. So exemplars e of classes y tell what either kind of stranger
   scores, J being N other classes. The border follows from that:

    b = a (mean_e log Σ_{k ≠ y} exp γ cos(e, w_k) − mean_e log Σ_{j ∈ J} exp γ cos(e, m_j)) − c

2. Refinement (Eqs. 3–4) with these scores, `steps` times from the support alone. R is the softmax
   of [β, ν] / τ over all classes, its novel columns:

    r = R on U and 1[y_i = j] on S,   p_j ∝ Σ_{S_j} f + Σ_u R_uj f_u,   w_u = Σ_j R_uj

3. Novel classes among themselves, where base classes do not vary within a class. With
   A = ((1−λ) Σ + λ I)^−½ for either kind of feature and means m over U weighted by w:

    h = [A_f f − m_f ; ρ (A_g g − m_g)], each part of length 1,   R'_uj = w_u softmax_j(s h_u·q_j)
    q_j ∝ Σ_{S_j} h + Σ_u R'_uj h_u, `own_steps` times from the support alone

   Then r and p are made anew with R'. The space is kept away from the border between base and novel
   classes, which centring and whitening spoil. Its steps are few: more of them drift.
4. Answer: β_k(x) and ν_j(x) − z. Half of U is novel, and in an episode so is half of all that is
   asked: z = 0. After a session most pictures are of other classes, whatever U shows.

Where nothing is known of base classes, η and b are 0 and the space is centred alone; without
mid-level features ρ is 0. So it also runs on features of any network.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fewgraft.densities import AT_A_TIME, densities, log_density, nearness
from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Solution, Task
from fewgraft.prototypes import (
    MINUS_INFINITY,
    Refinement,
    base_evidence,
    class_sums,
    direction_logits,
    directions,
    join_logits,
    members_of,
    prototypes,
    pseudo_labels,
    support_sums,
)

if TYPE_CHECKING:
    from fewgraft.base_knowledge import Axes, BaseKnowledge

PROBES = 10  # exemplars per class that say where the border is
TINY = 1e-6


@dataclass(frozen=True)
class Graft(Method):
    """Refinement with exemplar densities, then in a space of the novel classes' own."""

    uses_unlabelled = True
    uses_mid_features = True
    uses_knowledge = True
    for_base = ("sharpness", "density")
    search: ClassVar[Search] = {"margin": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)}
    over_sessions: ClassVar[Search] = {
        "rarity": (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0),
        "margin": (0.5, 1.5, 2.5, 3.5, 4.5),
    }
    added = ("rarity",)

    sharpness: float = 40.0  # κ
    density: float = 0.35  # η
    strangers: float = 1.5  # a
    margin: float = 2.5  # c
    steps: int = 10
    temperature: float = 2.5  # τ, of the pseudo-labels
    own_space: bool = True
    shrinkage: float = 0.5  # λ
    mid: float = 0.5  # ρ
    scale: float = 8.0  # s
    own_steps: int = 3
    rarity: float = 0.0  # z

    def base_scores(
        self, features: Tensor, logits: Tensor, knowledge: "BaseKnowledge | None"
    ) -> Tensor:
        """β [n, N_b]."""
        if knowledge is None or not self.density:
            return logits
        found = base_densities(features, knowledge.exemplars, self.sharpness)
        return logits + self.density * found[:, : logits.shape[1]]

    def fit(self, task: Task) -> Solution:
        """Steps 1–3; an empty U leaves the prototypes."""
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        grafted = self.refined(task)
        if self.own_space:
            novelty = grafted.weights[:, task.support.shape[1] :].sum(-1)  # w
            grafted = grafted.with_weights(task, told_apart(task, novelty, self))
        return dataclasses.replace(grafted, bias=grafted.bias - self.rarity)

    def refined(self, task: Task) -> "Grafted":
        """Step 2."""
        config = Refinement(temperature=self.temperature)
        base = base_evidence(task.base_unlabelled, config)
        novel = self.start(task)
        near = novel.nearness(task.unlabelled)
        for _ in range(self.steps):
            weights = pseudo_labels(novel.scores(task.unlabelled, near), base, config)  # R
            novel = novel.with_weights(task, weights)
        return novel

    def start(self, task: Task) -> "Grafted":
        """The support alone."""
        pictures = torch.cat([task.support, task.unlabelled], dim=1)
        none = task.unlabelled.new_zeros(*task.unlabelled.shape[:2], task.ways)
        novel = prototypes(task.support, task.labels, task.ways)
        weights = torch.cat([members_of(task.labels, task.ways, none.dtype), none], dim=1)
        density = self.density if task.knowledge is not None else 0.0
        return Grafted(
            novel, pictures, weights, task.gamma, self.sharpness, density, self.bias(task)
        )

    def bias(self, task: Task) -> float:
        """b, from base classes alone; 0 where there are none, or nothing is known of them."""
        base = task.first_weights
        if task.knowledge is None or not len(base):
            return 0.0
        apart = strangers(task.knowledge.exemplars, base, task.gamma, task.ways)
        return self.strangers * apart - self.margin


def base_densities(features: Tensor, exemplars: Tensor, sharpness: float) -> Tensor:
    """D_k [n, N_b] of directions [n, d], from exemplars [N_b, m, d]; rows of zeros are none."""
    there = exemplars.any(-1).to(exemplars.dtype)  # [N_b, m]
    found = [
        densities(some, exemplars, there, sharpness) for some in torch.split(features, AT_A_TIME)
    ]
    return torch.cat(found)


def novel_densities(near: Tensor, weights: Tensor, sharpness: float) -> Tensor:
    """D_j [E, n, N] from nearness [E, n, S+U] and weights r [E, S+U, N]."""
    return log_density(near @ weights / weights.sum(1, keepdim=True), sharpness)


def strangers(exemplars: Tensor, weights: Tensor, gamma: float, ways: int) -> float:
    """How much more wrong base classes score than N wrong novel ones would, on exemplars.

    mean_e lse_{k ≠ y} γ cos(e, w_k) − mean_e lse_{j ∈ J} γ cos(e, m_j), of exemplars [N_b, m, d]
    and weights [N_b, d]; m_k are means of exemplars. J are all groups of N classes or little more
    without y: every G-th class, G being ⌊N_b/N⌋. A few exemplars per class are enough.
    """
    n_base = len(weights)
    if n_base < 2:
        return 0.0
    few, device = exemplars[:, :PROBES], exemplars.device
    own = torch.eye(n_base, dtype=torch.bool, device=device)[:, None]  # [N_b, 1, N_b]
    groups = max(1, n_base // ways)
    group = torch.arange(n_base, device=device) % groups
    by_weights, by_means = (
        direction_logits(few, kind, gamma).masked_fill(own, MINUS_INFINITY)
        for kind in (weights, exemplars.sum(1))
    )
    novel = torch.stack([by_means[..., group == g].logsumexp(-1) for g in range(groups)], dim=-1)
    there = few.any(-1)[..., None].expand_as(novel)
    if groups > 1:  # else J lacks y alone
        there = there & (group[:, None] != torch.arange(groups, device=device))[:, None]
    return (by_weights.logsumexp(-1)[few.any(-1)].mean() - novel[there].mean()).item()


def told_apart(task: Task, novelty: Tensor, config: Graft) -> Tensor:
    """Step 3: R' [E, U, N], for pictures that are novel by w [E, U]."""
    support, unlabelled = _own_space(task, novelty, config)
    own, _ = support_sums(support, task.labels, task.ways)
    means = directions(own)  # q
    weights = novelty[..., None] * own_answers(unlabelled, means, config.scale)
    for _ in range(config.own_steps - 1):
        means = directions(own + class_sums(weights, unlabelled))
        weights = novelty[..., None] * own_answers(unlabelled, means, config.scale)
    return weights


def own_answers(features: Tensor, means: Tensor, scale: float) -> Tensor:
    """softmax_j(s h·q_j) [E, n, N] of directions h [E, n, d'] and q [E, N, d']."""
    return (scale * features @ means.transpose(1, 2)).softmax(-1)


def _own_space(task: Task, novelty: Tensor, config: Graft) -> tuple[Tensor, Tensor]:
    """h of support [E, S, d'] and U [E, U, d']."""
    known = task.knowledge
    axes, mid_axes = (known.axes, known.mid_axes) if known is not None else (None, None)
    support, unlabelled = whitened(task.support, task.unlabelled, novelty, axes, config.shrinkage)
    if task.mid is not None and config.mid:
        mid = whitened(*task.mid, novelty, mid_axes, config.shrinkage)
        support = directions(torch.cat([support, config.mid * mid[0]], dim=-1))
        unlabelled = directions(torch.cat([unlabelled, config.mid * mid[1]], dim=-1))
    return support, unlabelled


def whitened(
    support: Tensor,
    unlabelled: Tensor,
    novelty: Tensor,
    axes: "Axes | None",
    shrinkage: float,
) -> tuple[Tensor, Tensor]:
    """norm(A x − m) of support [E, S, d] and U [E, U, d], centred on what is novel [E, U] of U."""
    if axes is not None:
        root = whitening(axes, shrinkage).to(support.dtype)
        support, unlabelled = support @ root, unlabelled @ root
    centre = weighted_mean(unlabelled, novelty)
    return directions(support - centre), directions(unlabelled - centre)


def weighted_mean(features: Tensor, weights: Tensor) -> Tensor:
    """m = Σ_u w_u x_u / Σ_u w_u: [E, U, d] with [E, U] → [E, 1, d]."""
    total = weights.sum(1).clamp(min=TINY)
    return (weights[:, None] @ features) / total[:, None, None]


def whitening(axes: "Axes", shrinkage: float) -> Tensor:
    """A = ((1−λ) Σ + λ tr(Σ)/d I)^−½ [d, d], symmetric, from the axes of Σ."""
    variances, vectors = axes
    shrunk = (1 - shrinkage) * variances + shrinkage * variances.mean()
    return vectors * shrunk.clamp(min=TINY).rsqrt() @ vectors.T


@dataclass(frozen=True)
class Grafted:
    """Novel classes as directions and as places: p, and the pictures of S and U with weights r."""

    novel: Tensor  # p [E, N, d]
    pictures: Tensor  # directions [E, S+U, d]
    weights: Tensor  # r [E, S+U, N]
    gamma: float
    sharpness: float  # κ
    density: float  # η
    bias: float  # b

    def with_weights(self, task: Task, unlabelled: Tensor) -> "Grafted":
        """The same with other weights [E, U, N] of U, and p that they make."""
        own = self.weights[:, : task.support.shape[1]]  # of S: 1[y_i = j]
        weights = torch.cat([own, unlabelled], dim=1)
        novel = directions(class_sums(weights, self.pictures))
        return dataclasses.replace(self, novel=novel, weights=weights)

    @property
    def carried(self) -> Tensor:
        """What the novel classes are in a next session."""
        return self.novel

    def nearness(self, features: Tensor) -> Tensor | None:
        """k(x, x_i) [E, n, S+U] of directions [E, n, d]."""
        if not self.density:
            return None
        return nearness(features, self.pictures, self.sharpness)

    def scores(self, features: Tensor, near: Tensor | None) -> Tensor:
        """ν [E, n, N] of directions [E, n, d] with their nearness."""
        found = direction_logits(features, self.novel, self.gamma) + self.bias
        if near is None:
            return found
        return found + self.density * novel_densities(near, self.weights, self.sharpness)

    def logits(self, queries: Queries) -> Tensor:
        """Step 4."""
        novel = self.scores(queries.features, self.nearness(queries.features))
        return join_logits(queries.base_logits, novel)


METHODS = (
    MethodSpec(
        "graft",
        "Graft (ours)",
        Graft(),
        "algorithm-2",
        rank=9,
        remark="replays sixty stored features per base class (feature replay)",
    ),
)
