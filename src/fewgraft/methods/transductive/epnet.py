"""EPNet: embeddings smoothed along a graph, then labels propagated along a graph of those.

Rodríguez, Laradji, Drouin, Lacoste, "Embedding propagation: smoother manifold for few-shot
classification", ECCV 2020. Pictures x_i are vertices of a full graph:

    D_ij = ‖x_i − x_j‖² / √d,   A_ij = exp(−D_ij / std(D)),   A_ii = 0
    S_ij = A_ij / √((ε + Σ_k A_ik) (ε + Σ_k A_jk)),   P(α) = (I − αS)⁻¹

First x̃ = P(0.5) x. Then, on the graph of x̃, F = P(0.2) Y, rows divided by those of P(0.2) 1; the
logits are log(F + 10⁻⁶). With an unlabelled set this goes twice, each time with the columns of Y
divided by their sums: first U gets pseudo-labels, then U with them as labels gives the answer.

The paper puts the queries into both graphs, so that each answer depends on the other queries:
`together` does that. By default the graphs are of support and U alone, and a query is one more row
of the fixed point, x̃_q = x_q + 0.5 Σ_i s_qi x̃_i and F_q = 0.2 Σ_i s_qi F_i, the others held. Where
U is the query set, a copy of a query is that query, and without pseudo-labels (`pseudo_labels`)
these rows are those of the paper's transductive answer. The paper trains a network through the
propagation; here the features are as they are. It assumes no balance of classes.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Solution, Task
from fewgraft.methods.transductive.nearness import copies, not_asked, propagated, squared_distances
from fewgraft.prototypes import members_of, prototypes

EPSILON, LEAST = 1e-4, 1e-6


@dataclass(frozen=True)
class EmbeddingPropagation(Method):
    """How far embeddings and labels spread."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"embedding_alpha": (0.3, 0.5, 0.7), "label_alpha": (0.2, 0.5, 0.8)}
    search_by = "coordinates"

    embedding_alpha: float = 0.5
    label_alpha: float = 0.2
    pseudo_labels: bool = True  # U is labelled first, and those labels are propagated too
    together: bool = False  # the queries are vertices, as in the paper

    def fit(self, task: Task) -> Solution:
        """Without U a query is answered alone by the prototypes."""
        if self.together:
            return PropagatedTogether(task, self)
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        vertices = torch.cat([task.support, task.unlabelled], 1).double()
        embedding = Graph.of(vertices)
        smooth = embedding.spread(vertices, self.embedding_alpha)
        graph = Graph.of(smooth)
        labelled = members_of(task.labels, task.ways, smooth.dtype)
        unlabelled = task.unlabelled.shape[1]
        scores, total = self.propagate(graph, self.targets(graph, labelled, unlabelled))
        return PropagatedEmbeddings(embedding, smooth, graph, scores, total, unlabelled, self)

    def targets(self, graph: "Graph", labelled: Tensor, n_unlabelled: int) -> Tensor:
        """Y [E, n, N] of vertices: first the support, labelled [E, S, N], then U, others 0."""
        episodes, n_support, ways = labelled.shape
        targets = labelled.new_zeros(episodes, graph.vertices.shape[1], ways)
        targets[:, :n_support] = labelled
        if not (self.pseudo_labels and n_unlabelled):
            return targets
        unlabelled = slice(n_support, n_support + n_unlabelled)
        first = self.propagate(graph, targets / targets.sum(1, keepdim=True))[0]
        guessed = first[:, unlabelled].argmax(-1)
        targets[:, unlabelled] = members_of(guessed, ways, targets.dtype)
        return targets / targets.sum(1, keepdim=True)

    def propagate(self, graph: "Graph", targets: Tensor) -> tuple[Tensor, Tensor]:
        """P Y [E, n, N] and P 1 [E, n, 1]."""
        both = torch.cat([targets, torch.ones_like(targets[..., :1])], -1)
        found = graph.spread(both, self.label_alpha)
        return found[..., :-1], found[..., -1:]


@dataclass(frozen=True)
class Graph:
    """A full graph of pictures."""

    vertices: Tensor  # [E, n, d]
    edges: Tensor  # A [E, n, n]
    degrees: Tensor  # ε + Σ_k A_ik [E, n]
    deviation: Tensor  # std(D) [E, 1, 1]

    @classmethod
    def of(cls, vertices: Tensor) -> Self:
        """The deviation is that of the distances that are not 0."""
        distances = squared_distances(vertices, vertices) / vertices.shape[-1] ** 0.5
        deviation = _deviation(distances)
        edges = (-distances / deviation).exp()
        edges.diagonal(0, 1, 2).zero_()
        return cls(vertices, edges, EPSILON + edges.sum(-1), deviation)

    def spread(self, values: Tensor, alpha: float) -> Tensor:
        """P(α) of values [E, n, m]."""
        return propagated(self.edges, self.degrees, values, alpha)

    def rows(self, pictures: Tensor, same: Tensor) -> Tensor:
        """Rows of S [E, m, n] of further pictures [E, m, d], none of which is its `same` vertex."""
        distances = squared_distances(pictures, self.vertices) / pictures.shape[-1] ** 0.5
        edges = (-distances / self.deviation).exp().masked_fill(same, 0.0)
        degrees = EPSILON + edges.sum(-1, keepdim=True)
        found: Tensor = edges * (degrees * self.degrees[:, None]).rsqrt()
        return found


def _deviation(distances: Tensor) -> Tensor:
    """The standard deviation of what is not 0 in [E, n, n] → [E, 1, 1]; 1 where it is 0."""
    counted = distances != 0
    count = counted.sum((1, 2), keepdim=True)
    mean = distances.sum((1, 2), keepdim=True) / count.clamp(min=1)
    squares = ((distances - mean).square() * counted).sum((1, 2), keepdim=True)
    deviation = (squares / (count - 1).clamp(min=1)).sqrt()
    return torch.where(deviation > 1e-9 * mean, deviation, torch.ones_like(deviation))


@dataclass(frozen=True)
class PropagatedEmbeddings:
    """Both graphs, and what was propagated along them."""

    embedding: Graph
    smooth: Tensor  # x̃ [E, n, d]
    graph: Graph
    scores: Tensor  # P Y [E, n, N]
    total: Tensor  # P 1 [E, n, 1]
    n_unlabelled: int
    config: EmbeddingPropagation

    def logits(self, queries: Queries) -> Tensor:
        """One row of the fixed point per query."""
        features, vertices = queries.features.double(), self.embedding.vertices
        n_support = vertices.shape[1] - self.n_unlabelled
        same = features.new_zeros(*features.shape[:2], vertices.shape[1], dtype=torch.bool)
        same[..., n_support:] = copies(features, vertices[:, n_support:])
        near = self.embedding.rows(features, same)
        smooth = features + self.config.embedding_alpha * near @ self.smooth
        rows = self.config.label_alpha * self.graph.rows(smooth, same)
        scores = rows @ self.scores / (1 + rows @ self.total)
        return (scores + LEAST).log().to(queries.features.dtype)


@dataclass(frozen=True)
class PropagatedTogether:
    """Graphs of support, U and queries; a picture of U that is a query is one vertex."""

    task: Task
    config: EmbeddingPropagation

    def logits(self, queries: Queries) -> Tensor:
        """All queries of an episode are answered at once."""
        features = queries.features
        found = features.new_empty(*features.shape[:2], self.task.ways)
        labelled = members_of(self.task.labels, self.task.ways, torch.float64)
        for episodes, rest in not_asked(self.task.unlabelled, features):
            nodes = torch.cat([self.task.support[episodes], rest, features[episodes]], 1).double()
            smooth = Graph.of(nodes).spread(nodes, self.config.embedding_alpha)
            graph = Graph.of(smooth)
            targets = self.config.targets(graph, labelled[episodes], rest.shape[1])
            scores, total = self.config.propagate(graph, targets)
            answers = (scores / total)[:, -features.shape[1] :]
            found[episodes] = (answers + LEAST).log().to(features.dtype)
        return found


METHODS = (
    MethodSpec("epnet", "EPNet", EmbeddingPropagation(), "algorithm-1", rank=22, joint=False),
)
