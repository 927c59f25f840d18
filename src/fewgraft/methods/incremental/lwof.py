"""LwoF: a generator makes novel weights of support features and of base weights that they recall.

Gidaris, Komodakis, "Dynamic few-shot visual learning without forgetting", CVPR 2018. The weight of
a novel class has two parts, each scaled per feature: the mean direction of its supports, and the
base weights that an attention over them finds. With directions z_i of the supports, ŵ_j of the base
weights, and ⟨·⟩ the mean over a class's supports:

    α_ij = softmax_j(γ_att cos(A z_i + a, k_j))
    w'   = φ_avg ⊙ ⟨z_i⟩ + φ_att ⊙ ⟨Σ_j α_ij ŵ_j⟩

Base and novel weights answer together, γ cos(q, [W_b, w']). In the second stage of training the
features are frozen; φ, A, a, the keys k, γ_att, and W_b and γ descend on episodes in which some
classes are taken for novel.

Kept: the equations, initial values, all that moves, and the optimiser. On CIFAR-FS half of every
feature is dropped in training, as the authors do on residual networks: features of pictures that
the network was trained on lie too close together. Icons, with disjoint classes, do better without.
Left out: a bias that all columns share, which no answer depends on. Ours: fewer steps; the step is
kept that has the best joint accuracy, not the best accuracy among novel classes. A cosine network
needs no other change.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fewgraft.methods.base import MethodSpec, Queries, Task
from fewgraft.methods.trained import TrainedMethod
from fewgraft.prototypes import cosine_logits, direction_logits, directions, join_logits, prototypes

SHARPNESS = 10.0  # γ_att before training
NEAR_IDENTITY = 1e-3  # how far A is from I


@dataclass(frozen=True)
class LwoF(TrainedMethod):
    """Novel weights from class means and recalled base weights."""

    pieces = "lwof"
    changes_base = True

    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """The authors' initial values; W_b and γ begin as the model has them."""
        del shots
        n_base, d = weights.shape
        return {
            "weights": weights.clone(),  # W_b [N_b, d]
            "gamma": torch.tensor(gamma),
            "average": torch.ones(d),  # φ_avg
            "attention": torch.ones(d),  # φ_att
            "query": torch.eye(d) + NEAR_IDENTITY * torch.randn(d, d, generator=rng),  # A
            "query_bias": torch.zeros(d),  # a
            "keys": math.sqrt(2 / d) * torch.randn(n_base, d, generator=rng),  # k [N_b, d]
            "sharpness": torch.tensor(SHARPNESS),  # γ_att
        }

    def fit(self, task: Task) -> "GeneratedWeights":
        """Generate; the attention acts per support, the mean comes after."""
        learnt = self.learnt(task)
        asked = task.support @ learnt["query"].T + learnt["query_bias"]
        scores = cosine_logits(asked, learnt["keys"], learnt["sharpness"])  # [E, S, N_b]
        recalled = task.strike(scores).softmax(-1) @ directions(learnt["weights"])
        parts = [
            prototypes(part, task.labels, task.ways, normalise=False)
            for part in (task.support, recalled)
        ]
        novel = learnt["average"] * parts[0] + learnt["attention"] * parts[1]
        base = learnt["weights"][: len(task.first_weights)]  # none where the setting has none
        return GeneratedWeights(task, base, novel, learnt["gamma"])


@dataclass(frozen=True)
class GeneratedWeights:
    """Novel weights beside base weights that training has moved."""

    task: Task
    base: Tensor  # W_b [N_b, d]
    novel: Tensor  # [E, N, d]
    gamma: Tensor

    @property
    def carried(self) -> Tensor:
        """What the novel classes are in a next session."""
        return self.novel

    def logits(self, queries: Queries) -> Tensor:
        """Cosine logits over W = [W_b, w']; those of earlier sessions' classes stay."""
        base = self.task.strike(direction_logits(queries.features, self.base, self.gamma))
        base = join_logits(base, queries.base_logits[..., len(self.base) :])
        return join_logits(base, direction_logits(queries.features, self.novel, self.gamma))


METHODS = (MethodSpec("lwof", "LwoF", LwoF(), "pre-trained", rank=2, regular=False),)
