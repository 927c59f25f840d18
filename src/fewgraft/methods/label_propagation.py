"""Label propagation on a nearest-neighbour graph: the paper's rival "+ Graph".

Liu et al., "Learning to propagate labels", ICLR 2019 (TPN), after Zhou et al., "Learning with local
and global consistency", NIPS 2003. Vertices are the base weights and the prototypes, each labelled
with its class, and U. Labels Y spread along edges, F = (1−α) (I − αS)⁻¹ Y with
S = D^−½ A D^−½. A query asks its nearest vertices (Delalleau et al., "Efficient non-parametric
function induction in semi-supervised learning", AISTATS 2005), so that the answer to one query does
not depend on the others.

Small graphs are solved in closed form, many episodes at a time. A large U is never a matrix of
its square: neighbours are sought block by block, the matrix is sparse, and conjugate gradients do
the rest. All of it is in double precision: with α near 1 the system is nearly singular, weak edges
are small differences of large numbers, and rows that labels hardly reach are normalised afterwards.
In single precision the scores would depend on the order of sums, which differs between processors.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Task
from fewgraft.prototypes import directions, prototypes

DENSE_UP_TO = 1500  # vertices
ROWS = 1024  # of similarities at a time
TOLERANCE, MOST_ITERATIONS = 1e-6, 1000


@dataclass(frozen=True)
class LabelPropagation(Method):
    """Neighbours, sharpness of the edges and α."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"neighbours": (5, 10, 20), "power": (1.0, 3.0, 10.0)}

    neighbours: int = 10
    power: float = 3.0  # an edge weighs max(0, cos)^power
    alpha: float = 0.99
    dense_up_to: int = DENSE_UP_TO

    def fit(self, task: Task) -> "Propagated | NovelWeights":
        """Labels of all vertices; without U there is nothing to propagate along."""
        if task.unlabelled.shape[1] == 0:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        novel = prototypes(task.support.double(), task.labels, task.ways)
        base = directions(task.weights.double()).expand(len(task), -1, -1)
        vertices = torch.cat([base, novel, task.unlabelled.double()], dim=1)  # [E, n, d]
        n_classes = base.shape[1] + task.ways
        labels = torch.eye(
            vertices.shape[1], n_classes, dtype=vertices.dtype, device=vertices.device
        )
        places, edges = nearest_vertices(vertices, vertices, self.neighbours, self.power, skip=True)
        solve = dense_solution if vertices.shape[1] <= self.dense_up_to else sparse_solution
        return Propagated(vertices, solve(places, edges, labels, self.alpha), self)


@dataclass(frozen=True)
class Propagated:
    """Class scores of every vertex."""

    vertices: Tensor  # [E, n, d]
    scores: Tensor  # [E, n, N_b+N], each row summing to 1 where anything reached it
    config: LabelPropagation

    def logits(self, queries: Queries) -> Tensor:
        """Log of the mean score of the nearest vertices."""
        places, edges = nearest_vertices(
            queries.features.double(), self.vertices, self.config.neighbours, self.config.power
        )
        found = _gather(self.scores, places)  # [E, Q, k, C]
        total = edges.sum(-1, keepdim=True).clamp(min=torch.finfo(edges.dtype).tiny)
        mean = (edges[..., None] * found).sum(2) / total
        least = torch.finfo(queries.features.dtype).tiny
        return mean.clamp(min=least).log().to(queries.features.dtype)


def _gather(values: Tensor, places: Tensor) -> Tensor:
    """values [E, n, C] at places [E, m, k] → [E, m, k, C]."""
    episodes = torch.arange(len(values), device=values.device)[:, None, None]
    return values[episodes, places]


def nearest_vertices(
    features: Tensor, vertices: Tensor, k: int, power: float, *, skip: bool = False
) -> tuple[Tensor, Tensor]:
    """Places [E, m, k] and edge weights of the k nearest vertices of each row, block by block.

    `skip`: row i is vertex i, which is not its own neighbour.
    """
    k = min(k, vertices.shape[1] - skip)
    places, edges = [], []
    for start in range(0, features.shape[1], ROWS):
        similar = features[:, start : start + ROWS] @ vertices.transpose(1, 2)
        if skip:
            similar.diagonal(start, 1, 2).fill_(-2.0)
        best = similar.topk(k, dim=-1)
        places.append(best.indices)
        edges.append(best.values.clamp(min=0) ** power)
    return torch.cat(places, 1), torch.cat(edges, 1)


def _normalised(scores: Tensor) -> Tensor:
    """Rows that sum to 1; rows that nothing reached stay 0."""
    scores = scores.clamp(min=0)
    return scores / scores.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)


def dense_solution(places: Tensor, edges: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """(I − αS)⁻¹ Y for small graphs: places, edges [E, n, k], labels Y [n, C] → [E, n, C]."""
    n = places.shape[1]
    one_way = edges.new_zeros(len(places), n, n).scatter_(-1, places, edges)
    adjacency = (one_way + one_way.transpose(1, 2)) / 2
    scale = adjacency.sum(-1).clamp(min=torch.finfo(edges.dtype).tiny).rsqrt()
    system = -alpha * scale[:, :, None] * adjacency * scale[:, None, :]
    system.diagonal(0, 1, 2).add_(1.0)
    factor = torch.linalg.cholesky(system)
    return _normalised(torch.cholesky_solve(labels.expand(len(places), -1, -1), factor))


def sparse_solution(places: Tensor, edges: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """The same by conjugate gradients with a sparse matrix, one episode after the other."""
    return torch.stack(
        [_sparse_one(p, e, labels, alpha) for p, e in zip(places, edges, strict=True)]
    )


def _sparse_one(places: Tensor, edges: Tensor, labels: Tensor, alpha: float) -> Tensor:
    n, k = places.shape
    rows = torch.arange(n, device=places.device).repeat_interleave(k)
    columns, values = places.flatten(), edges.flatten() / 2
    both = torch.stack([torch.cat([rows, columns]), torch.cat([columns, rows])])
    values = torch.cat([values, values])
    degree = values.new_zeros(n).index_add_(0, both[0], values)
    scale = degree.clamp(min=torch.finfo(values.dtype).tiny).rsqrt()
    values = values * scale[both[0]] * scale[both[1]]
    spread = torch.sparse_coo_tensor(both, values, (n, n), check_invariants=True).coalesce()
    return _normalised(_conjugate_gradients(spread, labels, alpha))


def _conjugate_gradients(spread: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """Solves (I − α·spread) F = labels, all columns at once."""
    solution = torch.zeros_like(labels)
    residual, direction = labels.clone(), labels.clone()
    size = residual.square().sum(0)
    first = size.clone()
    tiny = torch.finfo(labels.dtype).tiny
    for _ in range(MOST_ITERATIONS):
        image = direction - alpha * (spread @ direction)
        step = size / (direction * image).sum(0).clamp(min=tiny)
        solution = solution + step * direction
        residual = residual - step * image
        new_size = residual.square().sum(0)
        if (new_size <= TOLERANCE**2 * first).all():
            break
        direction = residual + new_size / size.clamp(min=tiny) * direction
        size = new_size
    return solution


METHODS = (
    MethodSpec("+graph", "Meta-Inc-Baseline + Graph", LabelPropagation(), "algorithm-1", rank=2),
)
