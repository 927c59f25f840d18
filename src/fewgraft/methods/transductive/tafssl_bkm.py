"""TAFSSL, ICA + BKM: neighbours in the support, weighed by clusters of the task's subspace.

Lichtenstein, Sattigeri, Feris, Giryes, Karlinsky, "TAFSSL: task-adaptive feature sub-space learning
for few-shot classification", ECCV 2020. In the subspace (subspace.py) support and U fall into as
many clusters as there are classes; centres c_j are made unit vectors. With a support s of class c:

    p(j | s) = softmax over clusters of −‖s − c_j‖²
    p(j | q) = softmax over clusters of p′(j | q) / 0.1,   p′ as for supports
    p(c | q, j) = Σ_{s of c} exp(−‖s − q‖²) p(j | s), divided by the sum over all classes
    p(c | q) = Σ_j p(c | q, j) p(j | q)

Where U is the query set the authors' form is another one (`clusters = "hard"`, with
`centring = "apart"`): p(j | q) is 1 for the cluster that q is in, and before distances are taken,
for each cluster, −unit(mean of s p(j | s)) is added to supports and −unit(mean of u p(j | u)) to
queries. Here both work with any U. Clusters come from k_means.py, deterministic and of whole
batches. There is a cluster per class, of any size: it assumes no balance of classes.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Solution, Task
from fewgraft.methods.transductive.k_means import k_means
from fewgraft.methods.transductive.nearness import squared_distances
from fewgraft.methods.transductive.subspace import Centring, Kind, Subspace
from fewgraft.prototypes import class_sums, directions, members_of, prototypes


@dataclass(frozen=True)
class ClusterNeighbours(Method):
    """Size of the subspace, and how clusters count."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"dimensions": (4, 10, 20, 40), "centring": ("joint", "apart")}
    search_by = "coordinates"

    dimensions: int = 10
    temperature: float = 0.1  # of the clusters of queries
    starts: int = 10  # of k-means
    clusters: Literal["soft", "hard"] = "soft"
    subspace: Kind = "ica"
    centring: Centring = "joint"

    def fit(self, task: Task) -> Solution:
        """Without U there is no subspace to find: the prototypes answer."""
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        space = Subspace.of(task, self.dimensions, self.subspace, self.centring)
        points = torch.cat([space.support, space.unlabelled], 1)
        return self.weighed(task, space, k_means(points, task.ways, task.numbers, self.starts))

    def weighed(self, task: Task, space: Subspace, centres: Tensor) -> "WeighedNeighbours":
        """The answer with these clusters, means [E, N, k] of points of the subspace."""
        of_support = soft(space.support, directions(centres))
        labels = members_of(task.labels, task.ways, centres.dtype)
        shifts = None
        if self.clusters == "hard":
            shifts = (
                directions(class_sums(of_support, space.support)),
                directions(class_sums(hard(space.unlabelled, centres), space.unlabelled)),
            )
        return WeighedNeighbours(space, centres, of_support, labels, shifts, self.temperature)


def soft(points: Tensor, centres: Tensor) -> Tensor:
    """p(j | x) of points [E, n, k] [E, n, N]."""
    found: Tensor = torch.softmax(-squared_distances(points, centres), -1)
    return found


def hard(points: Tensor, centres: Tensor) -> Tensor:
    """1 for the cluster of each point [E, n, N]."""
    nearest = squared_distances(points, centres).argmin(-1)
    return members_of(nearest, centres.shape[1], points.dtype)


@dataclass(frozen=True)
class WeighedNeighbours:
    """The support with its clusters."""

    space: Subspace
    centres: Tensor  # [E, N, k], means of clusters
    of_support: Tensor  # p(j | s) [E, S, N]
    labels: Tensor  # 1 where a support is of a class [E, S, N]
    shifts: tuple[Tensor, Tensor] | None  # of supports and queries [E, N, k], by cluster
    temperature: float

    def logits(self, queries: Queries) -> Tensor:
        """Log-probabilities."""
        points = self.space.place(queries.features)
        if self.shifts is None:
            of_queries = soft(points, directions(self.centres)) / self.temperature
            of_queries = of_queries.softmax(-1)
        else:
            of_queries = hard(points, self.centres)
        parts = [
            self._within(points, j) * of_queries[..., j : j + 1]
            for j in range(self.centres.shape[1])
        ]
        return torch.stack(parts).sum(0).log().to(queries.features.dtype)

    def _within(self, points: Tensor, j: int) -> Tensor:
        """p(c | q, j) [E, Q, N]."""
        support = self.space.support
        if self.shifts is not None:
            support = support - self.shifts[0][:, j, None]
            points = points - self.shifts[1][:, j, None]
        near = (-squared_distances(points, support)).exp() * self.of_support[:, None, :, j]
        found = near @ self.labels
        return found / found.sum(-1, keepdim=True)


METHODS = (
    MethodSpec(
        "tafssl-bkm",
        "TAFSSL, ICA + BKM",
        ClusterNeighbours(),
        "algorithm-1",
        rank=21,
        joint=False,
    ),
)
