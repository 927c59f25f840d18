"""TIM: class weights by which every picture of U is decided, and U as a whole is spread.

Boudiaf, Masud, Rony, Dolz, Piantanida, Ben Ayed, "Transductive information maximization for
few-shot learning", NeurIPS 2020. On directions x, with logits −(τ/2)‖x − w_c‖² and p their softmax,
the loss of an episode is

    λ₀ CE(S) − λ₁ H(mean_b p_b) + λ₂ mean_b H(p_b)

"tim-gd" moves W, which begins as the support's means, by Adam. "tim-adm" alternates closed forms:
with n_S and n_U pictures, a = λ₀/(1+λ₂) and β = n_S/n_U,

    q_bc ∝ p_bc^(1+λ₂) / (Σ_b p_bc^(1+λ₂))^(λ₁/(1+λ₁))
    w_c = [a Σ_S (y x + p (w_c − x)) + β Σ_U (q x + p (w_c − x))] / [a K_c + β Σ_U q]

The marginal entropy H(mean_b p_b) is largest where all classes are used equally: the method assumes
that U holds equally many pictures of each. Queries play no part in it but to be answered with W, so
each is answered alone. The gradient is written out: one product of features and weights there, one
back. Of Adam's 1000 gradients most need not be computed to know them (descent.py). There is no
place for base classes in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Task
from fewgraft.methods.transductive.descent import adam
from fewgraft.methods.transductive.nearness import class_logits
from fewgraft.prototypes import directions, join_logits, members_of, prototypes

AT_A_TIME = 1_000_000  # numbers of features: they stay near the processor from step to step


@dataclass(frozen=True)
class Evidence:
    """Support and unlabelled directions of E episodes, in one tensor."""

    features: Tensor  # [E, S+U, d]
    members: Tensor  # one-hot labels of the support, classes first [E, N, S]
    present: Tensor | None = None  # 1 for unlabelled pictures that are there [E, 1, U]; None: all

    @property
    def supports(self) -> int:
        """How many come first."""
        return self.members.shape[2]

    def means(self) -> Tensor:
        """Of the support, class by class [E, N, d]."""
        total = self.members @ self.features[:, : self.supports]
        return total / self.members.sum(2, keepdim=True)

    @property
    def count(self) -> Tensor | int:
        """How many unlabelled pictures there are [E, 1, 1]."""
        if self.present is None:
            return self.features.shape[1] - self.supports
        return self.present.sum(2, keepdim=True)

    def there(self, values: Tensor) -> Tensor:
        """Values of unlabelled pictures [E, N, U], with 0 where there is none."""
        return values if self.present is None else values * self.present

    def __getitem__(self, e: slice | Tensor) -> "Evidence":
        """Some of the episodes."""
        present = None if self.present is None else self.present[e]
        return Evidence(self.features[e].contiguous(), self.members[e], present)

    def parts(self) -> "Iterator[Evidence]":
        """A few episodes at a time."""
        some = max(1, AT_A_TIME // self.features[0].numel())
        for start in range(0, len(self.features), some):
            yield self[start : start + some]

    def double(self) -> "Evidence":
        """The same in double precision."""
        present = None if self.present is None else self.present.double()
        return Evidence(self.features.double(), self.members.double(), present)


@dataclass(frozen=True)
class InformationMaximisation(Method):
    """Common to TIM and α-TIM: W by Adam."""

    uses_unlabelled = True
    takes_gaps = True

    steps: int = 1000
    lr: float = 1e-4
    temperature: float = 15.0  # τ
    w_support: float = 0.1  # λ₀
    w_marginal: float = 1.0  # λ₁
    w_conditional: float = 0.1  # λ₂

    def fit(self, task: Task) -> "DistanceWeights | NovelWeights":
        """An empty unlabelled set leaves the prototypes."""
        if task.unlabelled.shape[1] == 0:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        features = directions(torch.cat([task.support, task.unlabelled], 1))
        members = members_of(task.labels, task.ways, features.dtype).transpose(1, 2)
        present = None if task.present is None else task.present[:, None].to(features.dtype)
        given = Evidence(features, members, present)
        weights = [self.weights(part) for part in given.parts()]
        return DistanceWeights(torch.cat(weights).to(features.dtype), self.temperature)

    def weights(self, given: Evidence) -> Tensor:
        """W [E, N, d] after steps of Adam, whose gradients need not all be computed."""
        every = len(given.features)

        def gradient(weights: Tensor, e: Tensor) -> Tensor:
            return self.gradient(given if len(e) == every else given[e], weights)

        return adam(gradient, given.means(), self.steps, self.lr)

    def gradient(self, given: Evidence, weights: Tensor) -> Tensor:
        """Of each episode's loss by its W [E, N, d]."""
        by_logits = self.by_logits(
            given, class_logits(given.features, weights, self.temperature / 2)
        )
        pull = by_logits @ given.features
        return self.temperature * (pull - by_logits.sum(2, keepdim=True) * weights)

    def by_logits(self, given: Evidence, logits: Tensor) -> Tensor:
        """The derivative of the loss by the logits [E, N, S+U]."""
        logs = logits.log_softmax(1)
        n, p = given.supports, logs.exp()
        unlabelled = p[:, :, n:]
        used = given.there(unlabelled).sum(2, keepdim=True) / given.count
        used = used.clamp(min=torch.finfo(p.dtype).tiny).log()
        slope = self.w_marginal * self.slope(used) - self.w_conditional * self.slope(logs[:, :, n:])
        by_p = given.there(slope / given.count)
        found = torch.empty_like(p)
        found[:, :, :n] = (self.w_support / n) * (p[:, :, :n] - given.members)
        inner = (unlabelled * by_p).sum(1, keepdim=True)
        torch.mul(unlabelled, by_p - inner, out=found[:, :, n:])
        return found

    def slope(self, logs: Tensor) -> Tensor:
        """−dH/dp by log p, up to a constant, which a softmax does not feel: Shannon's entropy."""
        return logs


@dataclass(frozen=True)
class GradientTIM(InformationMaximisation):
    """TIM-GD."""

    search: ClassVar[Search] = {
        "temperature": (2.5, 5.0, 10.0, 15.0, 30.0),
        "w_marginal": (0.3, 1.0, 3.0, 10.0),
        "w_conditional": (0.03, 0.1, 0.3, 1.0),
    }
    search_by = "coordinates"


@dataclass(frozen=True)
class AlternatingTIM(InformationMaximisation):
    """TIM-ADM: closed forms in turn, a tenth of the time."""

    search: ClassVar[Search] = GradientTIM.search
    search_by = "coordinates"

    steps: int = 150

    def weights(self, given: Evidence) -> Tensor:
        """W [E, N, d]; in double precision, because rounding adds up over closed forms."""
        given = given.double()
        weights = given.means()
        for _ in range(self.steps):
            weights = self._step(given, weights)
        return weights

    def _step(self, given: Evidence, weights: Tensor) -> Tensor:
        n, each = given.supports, 1 + self.w_conditional
        labelled, unlabelled = self.w_support / each, n / given.count
        logs = class_logits(given.features, weights, self.temperature / 2).log_softmax(1)
        sharp = each * logs[:, :, n:]
        used = sharp.logsumexp(2, keepdim=True)
        if given.present is not None:
            used = (sharp + given.present.log()).logsumexp(2, keepdim=True)
        q = (sharp - self.w_marginal / (1 + self.w_marginal) * used).softmax(1)
        targets = torch.cat([labelled * given.members, given.there(unlabelled * q)], 2)
        p = logs.exp()
        guesses = torch.cat([labelled * p[:, :, :n], given.there(unlabelled * p[:, :, n:])], 2)
        pull = (targets - guesses) @ given.features
        return (pull + guesses.sum(2, keepdim=True) * weights) / targets.sum(2, keepdim=True)


@dataclass(frozen=True)
class DistanceWeights:
    """A weight per class, and how sharply distance to it counts."""

    weights: Tensor  # [E, N, d]
    temperature: float

    def logits(self, queries: Queries) -> Tensor:
        """−(τ/2)‖x − w‖² for directions x, each query alone."""
        features = directions(queries.features)
        found = class_logits(features, self.weights, self.temperature / 2) - self.temperature / 2
        return join_logits(queries.base_logits, found.transpose(1, 2))


METHODS = (
    MethodSpec(
        "tim-adm", "TIM-ADM", AlternatingTIM(), "algorithm-1", rank=21, joint=False, balanced=True
    ),
    MethodSpec(
        "tim-gd", "TIM-GD", GradientTIM(), "algorithm-1", rank=22, joint=False, balanced=True
    ),
)
