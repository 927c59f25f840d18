"""TEAM-like metric: distances in a metric of the task's own.

Qiao, Shi, Li, Wang, Huang, Tian, "Transductive episodic-wise adaptive metric for few-shot
learning", ICCV 2019. A metric M is fitted to every task: from all its pictures, labelled or not, as
a prior, and from pairs of supports of one class, which shall be close. No code is public and the
paper's constants are not known here. This is a metric of the same kind, with a closed form:

    M = argmin over M ≻ 0 of tr(M (Σ + γ C + ε I)) − log det M = (Σ + γ C + ε I)⁻¹
    d(q, c) = (q − p_c)ᵀ M (q − p_c)

Σ is the covariance of support and U, shrunk as Ledoit and Wolf do, C the mean of (s − s')(s − s')ᵀ
over pairs of supports of one class, which is 0 at one shot, and p_c a class mean. ε counts in mean
variances: without it the directions that tell classes apart, in which a task varies most, count
least. Missing: the paper's network, which is trained through the metric on episodes with mixed
pictures; that takes the training pictures and the constants of its program. The paper's similarity
goes both ways, from a query to the classes and from a class to all queries: `together` does. By
default each query is answered alone, by −d/2. It assumes no balance of classes. There is no place
for base classes in it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Task
from fewgraft.methods.transductive.nearness import squared_distances
from fewgraft.prototypes import class_sums, join_logits, members_of, prototypes

RIDGE = 1e-9  # so that features without any spread have a metric


@dataclass(frozen=True)
class AdaptiveMetric(Method):
    """How much pairs of supports, and all directions alike, count beside the covariance."""

    uses_unlabelled = True
    search: ClassVar[Search] = {
        "ridge": (0.3, 1.0, 3.0, 10.0, 30.0, 100.0),
        "gamma": (0.1, 1.0, 10.0),
    }
    search_by = "coordinates"

    ridge: float = 3.0  # ε, in mean variances
    gamma: float = 1.0  # γ
    together: bool = False  # classes choose among the queries, too, as in the paper

    def fit(self, task: Task) -> "MetricPrototypes | NovelWeights":
        """In double precision; an empty unlabelled set leaves the prototypes."""
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        support = task.support.double()
        spread = shrunk_covariance(torch.cat([support, task.unlabelled.double()], 1))
        mean = spread.diagonal(0, 1, 2).mean(-1)[:, None, None]
        spread = spread + self.ridge * mean * torch.eye(spread.shape[-1]).to(spread)
        spread = spread + self.gamma * pair_scatter(support, task.labels, task.ways)
        root = metric_root(spread)
        centres = prototypes(support, task.labels, task.ways, normalise=False)
        return MetricPrototypes(root, centres @ root, self.together)


def metric_root(spread: Tensor) -> Tensor:
    """R with R Rᵀ = M, the inverse of a spread [E, d, d]."""
    identity = torch.eye(spread.shape[-1]).to(spread)
    lower = torch.linalg.cholesky(spread + RIDGE * identity)
    found: Tensor = torch.linalg.solve_triangular(lower, identity, upper=False).mT
    return found


def shrunk_covariance(features: Tensor) -> Tensor:
    """Covariances [E, d, d] of features [E, n, d], drawn towards a multiple of I.

    Ledoit, Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", Journal
    of Multivariate Analysis 2004: as far as the entries of the covariance are noise.
    """
    n, d = features.shape[1:]
    apart = features - features.mean(1, keepdim=True)
    found = apart.mT @ apart / n
    mean = found.diagonal(0, 1, 2).mean(-1)[:, None, None]
    squares = found.square().sum((1, 2))
    noise = (apart.square().sum(-1).square().mean(1) - squares) / n
    structure = squares - d * mean[:, 0, 0].square()
    share = (noise / structure.clamp(min=torch.finfo(found.dtype).tiny)).clamp(0, 1)[:, None, None]
    return (1 - share) * found + share * mean * torch.eye(d).to(found)


def pair_scatter(support: Tensor, labels: Tensor, ways: int) -> Tensor:
    """C [E, d, d]: the mean of (s − s')(s − s')ᵀ over pairs of one class; 0 without pairs.

    Over the pairs of a class of K supports it adds up to K times the scatter about their mean.
    """
    members = members_of(labels, ways, support.dtype)
    count = members.sum(1)  # [E, N]
    apart = support - members @ (class_sums(members, support) / count[..., None])
    size = (members @ count[..., None]).to(support)  # K of every support's class [E, S, 1]
    pairs = (count * (count - 1) / 2).sum(-1)[:, None, None]
    return apart.mT @ (size * apart) / pairs.clamp(min=1)


@dataclass(frozen=True)
class MetricPrototypes:
    """Class means in the task's metric."""

    root: Tensor  # R [E, d, d]
    centres: Tensor  # p R [E, N, d]
    together: bool

    def logits(self, queries: Queries) -> Tensor:
        """−d/2; together, the logarithm of both softmaxes."""
        placed = queries.features.double() @ self.root
        found = -squared_distances(placed, self.centres) / 2
        if self.together:
            found = found.log_softmax(-1) + found.log_softmax(1)
        return join_logits(queries.base_logits, found.to(queries.features.dtype))


METHODS = (
    MethodSpec("team", "TEAM-like metric", AdaptiveMetric(), "algorithm-1", rank=27, joint=False),
)
