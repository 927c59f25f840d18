"""TAFSSL, ICA + MSP: prototypes in the task's subspace, moved by the surest pictures of U.

Lichtenstein, Sattigeri, Feris, Giryes, Karlinsky, "TAFSSL: task-adaptive feature sub-space learning
for few-shot classification", ECCV 2020. In the subspace (subspace.py) everything has length 1 and
p(c | x) = softmax over classes of −σ‖x − p_c‖², where p_c is the mean of the support. Four times:

    m = the least, over classes, number of unlabelled pictures with p(c | x) > 0.3
    p_c ← mean of the support of c and of the m pictures of U with the largest p(c | x)

Each time from the support anew; a picture may count for several classes. Without rounds and with 4
dimensions it is the authors' plain subspace. Since m is the same for all classes, classes are
assumed to be about equally frequent in U: one that is rare there holds the others back. With the
basis of subspace.py the method is deterministic, where FastICA needs a seed.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Solution, Task
from fewgraft.methods.transductive.nearness import squared_distances
from fewgraft.methods.transductive.subspace import Centring, Kind, Subspace
from fewgraft.prototypes import class_sums, prototypes, support_sums


@dataclass(frozen=True)
class SurestPrototypes(Method):
    """Size of the subspace, rounds, and who is sure."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"dimensions": (4, 10, 20, 40), "centring": ("joint", "apart")}
    search_by = "coordinates"

    dimensions: int = 10
    rounds: int = 4
    threshold: float = 0.3
    scale: float = 1.0  # σ
    subspace: Kind = "ica"
    centring: Centring = "joint"

    def fit(self, task: Task) -> Solution:
        """Without U there is no subspace to find: the prototypes answer."""
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        space = Subspace.of(task, self.dimensions, self.subspace, self.centring)
        own, count = support_sums(space.support, task.labels, task.ways)
        novel = own / count[..., None]
        for _ in range(self.rounds):
            scores = (-self.scale * squared_distances(space.unlabelled, novel)).softmax(-1)
            chosen, size = self.surest(scores)
            total = own + class_sums(chosen, space.unlabelled)
            novel = total / (count + size)[..., None]
        return SubspacePrototypes(space, novel, self.scale)

    def surest(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """1 where a picture is among the m surest of a class [E, U, N], and m [E, 1]."""
        size = (scores > self.threshold).sum(1).amin(-1, keepdim=True)  # m
        rank = scores.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return (rank < size[:, None]).to(scores.dtype), size


@dataclass(frozen=True)
class SubspacePrototypes:
    """Prototypes in the task's subspace."""

    space: Subspace
    novel: Tensor  # [E, N, k]
    scale: float

    def logits(self, queries: Queries) -> Tensor:
        """Log-probabilities."""
        distances = squared_distances(self.space.place(queries.features), self.novel)
        found: Tensor = torch.log_softmax(-self.scale * distances, -1)
        return found.to(queries.features.dtype)


METHODS = (
    MethodSpec(
        "tafssl-msp",
        "TAFSSL, ICA + MSP",
        SurestPrototypes(),
        "algorithm-1",
        rank=20,
        joint=False,
        balanced=True,
    ),
)
