"""TPN: label propagation whose every picture has a bandwidth of its own.

Liu, Lee, Park, Kim, Yang, Hwang, Yang, "Learning to propagate labels: transductive propagation
network for few-shot learning", ICLR 2019. Pictures x_i with bandwidths σ_i are vertices:

    z_i = x_i / σ_i,   W_ij = exp(−½ mean over dimensions of (z_i − z_j)²)

An edge stays where j is among the k largest of row i, itself included, or i among those of row j.
Labels Y spread, F = (I − αS)⁻¹ Y with S = D^−½ W D^−½; with α = 0.99 in double precision.

The paper learns a small network that gives σ_i, from base classes, end to end with its encoder.
There are two rows. One has one σ for all pictures, in units of the root mean squared distance of
the task, chosen on validation episodes. The other learns the network, in a form for features of a
frozen encoder (`bandwidths`), by the cross-entropy of queries that are answered as in testing; the
paper's is convolutional, sees maps, and its loss is on all vertices. Learning the encoder as well
would take the training pictures and days.

The paper's vertices are support, U and queries: `together`. By default a query asks its k nearest
vertices among support and U (Delalleau et al., AISTATS 2005), score = Σ_i W_qi / √D_i F_i. It
assumes no balance of classes, but α near 1 favours the class whose support is connected best.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, softplus

from fewgraft.methods.base import Method, MethodSpec, NovelWeights, Queries, Search, Solution, Task
from fewgraft.methods.trained import TrainedMethod
from fewgraft.methods.transductive.nearness import not_asked, propagated, squared_distances
from fewgraft.prototypes import members_of, prototypes

NARROWEST = 0.05  # a bandwidth, in root mean squared distances
START = 0.3  # the same before training
WIDTHS = (64, 8)  # of the network
NEARLY_EQUAL = 1e-2


@dataclass(frozen=True)
class TransductivePropagation(Method):
    """Bandwidth, neighbours and α."""

    uses_unlabelled = True
    search: ClassVar[Search] = {"sigma": (0.1, 0.15, 0.2, 0.3, 0.5), "neighbours": (5, 10, 20, 40)}

    sigma: float = 0.3  # in root mean squared distances of the task
    neighbours: int = 20  # of a vertex, itself included
    alpha: float = 0.99
    together: bool = False  # the queries are vertices, as in the paper

    def fit(self, task: Task) -> Solution:
        """Without U a query is answered alone by the prototypes."""
        if self.together:
            return PropagatedLabels(task, self)
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        vertices = torch.cat([task.support, task.unlabelled], 1).double()
        scale = 1 / (self.sigma * mean_distance(vertices))
        return spread_labels(task, lambda x: x * scale, self.neighbours, self.alpha)


@dataclass(frozen=True)
class LearntBandwidths(TrainedMethod):
    """A network gives every picture its bandwidth."""

    uses_unlabelled = True
    pieces = "tpn-sigma"
    search: ClassVar[Search] = {"neighbours": (5, 10, 20)}

    neighbours: int = 10  # of a vertex, itself included
    alpha: float = 0.99

    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """A network that gives nearly the same bandwidth to all."""
        del gamma, shots
        d, (wide, narrow) = weights.shape[1], WIDTHS
        return {
            "first": torch.randn(wide, d, generator=rng) * math.sqrt(2 / d),
            "first_bias": torch.zeros(wide),
            "second": torch.randn(narrow, wide, generator=rng) * math.sqrt(2 / wide),
            "second_bias": torch.zeros(narrow),
            "out": torch.randn(1, narrow, generator=rng) * NEARLY_EQUAL,
            "out_bias": torch.full((1,), math.log(math.expm1(START - NARROWEST))),
        }

    def fit(self, task: Task) -> Solution:
        """Without U a query is answered alone by the prototypes."""
        learnt = self.learnt(task)
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        layers = [
            (learnt[name].double(), learnt[f"{name}_bias"].double())
            for name in ("first", "second", "out")
        ]
        unit = mean_distance(torch.cat([task.support, task.unlabelled], 1).double())
        return spread_labels(
            task, lambda x: x / bandwidths(x, layers, unit), self.neighbours, self.alpha
        )


Scale = Callable[[Tensor], Tensor]  # features x [E, n, d] in double precision → z [E, n, d]


def spread_labels(task: Task, scale: Scale, neighbours: int, alpha: float) -> "NeighbourScores":
    """Labels spread over the graph of support and U."""
    vertices = scale(torch.cat([task.support, task.unlabelled], 1).double())
    weights = edges(vertices, neighbours)
    scores = propagate(weights, targets(task.labels, task.ways, vertices), alpha)
    scores = scores * weights.sum(-1, keepdim=True).rsqrt()
    return NeighbourScores(vertices, scores, scale, neighbours)


def mean_distance(vertices: Tensor) -> Tensor:
    """The root mean squared difference in one dimension of two vertices of [E, n, d] → [E, 1, 1].

    1 where all vertices are equal.
    """
    distances = squared_distances(vertices, vertices).mean((1, 2), keepdim=True)
    mean = (distances / vertices.shape[-1]).sqrt()
    return torch.where(mean > 0, mean, torch.ones_like(mean))


def bandwidths(features: Tensor, layers: Sequence[tuple[Tensor, Tensor]], unit: Tensor) -> Tensor:
    """σ [E, n, 1] of features [E, n, d] from a network of linear layers with ReLU between them.

    σ_i = (0.05 + softplus(network(x_i))) times the root mean squared distance of the task, `unit`
    [E, 1, 1]: layers are weights [out, in] and biases [out], the last with one output.
    """
    hidden = features
    for weight, bias in layers[:-1]:
        hidden = linear(hidden, weight, bias).relu()
    return (NARROWEST + softplus(linear(hidden, *layers[-1]))) * unit


def targets(labels: Tensor, ways: int, vertices: Tensor) -> Tensor:
    """Y [E, n, N] of vertices [E, n, d] that begin with the support, labels [E, S]."""
    found = vertices.new_zeros(*vertices.shape[:2], ways)
    found[:, : labels.shape[1]] = members_of(labels, ways, vertices.dtype)
    return found


def edges(scaled: Tensor, neighbours: int) -> Tensor:
    """W [E, n, n] of z [E, n, d]: an edge stays if either end counts it among its largest."""
    weights = similarities(scaled, scaled)
    kept = _largest(weights, neighbours)
    return weights * (kept | kept.transpose(1, 2))


def similarities(scaled: Tensor, others: Tensor) -> Tensor:
    """exp(−½ mean squared difference) of z [E, n, d] and [E, m, d] → [E, n, m]."""
    return (-0.5 / scaled.shape[-1] * squared_distances(scaled, others)).exp()


def _largest(weights: Tensor, count: int) -> Tensor:
    """Where the `count` largest of each row are, ties all alike [E, n, m]."""
    least = weights.topk(min(count, weights.shape[-1]), -1).values[..., -1:]
    return weights >= least


def propagate(weights: Tensor, targets: Tensor, alpha: float) -> Tensor:
    """F = (I − αS)⁻¹ Y of edges W [E, n, n] and Y [E, n, N]."""
    return propagated(weights, weights.sum(-1), targets, alpha)


@dataclass(frozen=True)
class NeighbourScores:
    """What a query learns from the vertices near it."""

    vertices: Tensor  # z [E, n, d]
    scores: Tensor  # F / √D [E, n, N]
    scale: Scale
    neighbours: int

    def logits(self, queries: Queries) -> Tensor:
        """Log of the nearest vertices' scores."""
        weights = similarities(self.scale(queries.features.double()), self.vertices)
        scores = (weights * _largest(weights, self.neighbours)) @ self.scores
        return log_scores(scores, queries.features.dtype)


@dataclass(frozen=True)
class PropagatedLabels:
    """One graph of support, U and queries; a picture of U that is a query is one vertex."""

    task: Task
    config: TransductivePropagation

    def logits(self, queries: Queries) -> Tensor:
        """All queries of an episode are answered at once."""
        features = queries.features
        found = features.new_empty(*features.shape[:2], self.task.ways)
        for episodes, rest in not_asked(self.task.unlabelled, features):
            nodes = torch.cat([self.task.support[episodes], rest, features[episodes]], 1).double()
            weights = edges(
                nodes / (self.config.sigma * mean_distance(nodes)), self.config.neighbours
            )
            labels = targets(self.task.labels[episodes], self.task.ways, nodes)
            scores = propagate(weights, labels, self.config.alpha)[:, -features.shape[1] :]
            found[episodes] = log_scores(scores, features.dtype)
        return found


def log_scores(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """Of scores ≥ 0 in double precision; where nothing arrived, the least that `dtype` has."""
    return scores.clamp(min=torch.finfo(dtype).tiny).log().to(dtype)


METHODS = (
    MethodSpec("tpn", "TPN, one σ", TransductivePropagation(), "algorithm-1", rank=23, joint=False),
    MethodSpec(
        "tpn-sigma", "TPN, learnt σ", LearntBandwidths(), "algorithm-1", rank=28, joint=False
    ),
)
