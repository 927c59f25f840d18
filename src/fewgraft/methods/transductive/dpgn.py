"""DPGN (features): two graphs, of pictures and of their likeness to all supports, teach each other.

Yang, Li, Zhang, Zhou, Zhou, Liu, "DPGN: Distribution propagation graph network for few-shot
learning", CVPR 2020. The nodes of the point graph are pictures, with vectors v; a node of the
distribution graph is a picture's vector of likeness to the supports, p. A generation is

    e^p_ij ∝ e^p_ij · s(v_i, v_j)                 likeness of pictures
    p_i    ← leaky(linear [e^p_i to the supports; p_i])
    e^d_ij ∝ e^d_ij · s'(p_i, p_j)                likeness of these distributions
    v_i    ← network [v_i; Σ_j e^d_ij v_j]

s is the sigmoid of a network of (v_i − v_j)². Every row keeps its weight on others, gets 1 for the
node itself, and is then made to add up to 1. Edges begin as agreement of labels between supports,
as one share for every support at an unlabelled node, and as 0 between unlabelled nodes; since they
are only ever multiplied, the last stay 0 (1e-6 in the paper's code) and are not computed here. A
picture is answered by its last edges to the supports of each class.

Training descends on the cross-entropy of edges between queries and supports, like and unlike pairs
apart; on a tenth of the same for e^d; and on a tenth of the cross-entropy of −‖v_i − v_j‖².

Ours: a frozen network, whose features two linear maps embed, where the paper trains a ResNet-12 end
to end and takes the first edges from its second last layer; 3 generations of width 48 instead of 6
of 128. A layer is standardised by the task's own support and U, in testing, too, with one variance
for all its outputs: with one for each, directions in which nothing differs but noise would count
like any other. The paper's maps over supports have a weight per place of a support, so that its
answers depend on their order. Ours are the linear maps that do not: of a support's own entry, the
mean of its class and the mean of all classes. One set of pieces thus serves any number of classes
and supports.

The paper trains and tests graphs with exactly one query of each class, which is the strongest
assumption of balance there is. Here it is not made. The unlabelled nodes are those of U, however
many there are of each class: an extension, since the paper has no U. They count for a support
`mass` in all. A query is one more node that the graph does not see: each is answered alone. Where U
is the query set, a query is answered just as its own node in the one graph of all of them. There is
no place for base classes in it.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, leaky_relu, linear, logsigmoid

from fewgraft.methods.base import LearntTensors, MethodSpec, NovelWeights, Queries, Search, Task
from fewgraft.methods.trained import TrainedMethod
from fewgraft.prototypes import directions, join_logits, members_of, prototypes

GENERATIONS = 3
WIDTH = 48  # of places in the point graph
HIDDEN, NARROW = 16, 8  # of the likeness of places, and of that of distributions
EARLY = 0.2  # weight of the loss of a generation that is not the last
ASIDE = 0.1  # weight of the losses beside that of the point graph's edges
EPSILON = 1e-5  # of a variance
# Before training. A shift in deviations, so that the leaky ReLU takes little away: small distances
# are below the mean, and they are what counts. How much likeness falls with a deviation of the
# distance, more in later generations, whose places are better. And a sigmoid's argument so low that
# it is nearly an exponential: no two pairs are as like as can be.
ABOVE = 2.0
FALLS = (0.5, 2.0, 4.0)
LOW = -4.0
NOISE = 1e-3  # far below a base class's weights


@dataclass(frozen=True)
class DistributionPropagation(TrainedMethod):
    """How much U counts."""

    uses_unlabelled = True
    pieces = "dpgn"
    at_a_time = 30  # pairs of pictures take memory
    search: ClassVar[Search] = {"mass": (0.3, 1.0, 3.0, 10.0)}

    mass: float = 1.0  # of U for a support, beside 1 for every other support of its class

    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """Every likeness falls with the distance, and what a node sees adds to what it is.

        So the first generation answers by mean distances to a class's supports, and later ones move
        these to where they see others like them.
        """
        del gamma, shots
        found = new_layer("first", leading(weights, rng))
        found |= new_likeness("first", HIDDEN, WIDTH, FALLS[0], rng)
        found |= new_layer("embedding", leading(weights, rng))
        for g in range(GENERATIONS):
            found |= new_likeness(f"point_{g}", HIDDEN, WIDTH, FALLS[g], rng)
            found |= new_likeness(f"distribution_{g}", NARROW, 2, 1.0, rng)
            found[f"spread_{g}"] = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0, 0.0]])
            found[f"spread_{g}_bias"] = torch.zeros(1)
        for g in range(GENERATIONS - 1):
            found |= new_layer(f"gather_{g}", rotation(WIDTH, rng).repeat(1, 2), ABOVE)
            found |= new_layer(f"next_{g}", rotation(WIDTH, rng), ABOVE)
        return found

    def fit(self, task: Task) -> "PropagatedDistributions | NovelWeights":
        """An empty unlabelled set leaves the prototypes."""
        self.learnt(task)
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        return PropagatedDistributions(task, self)

    def loss(
        self, task: Task, queries: Queries, labels: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Of all generations, the last of which counts most."""
        del rng
        members = members_of(task.labels, task.ways, task.support.dtype)
        alike = labels[:, :, None] == task.labels[:, None]  # [E, Q, S]
        losses = []
        for state in self.generations(task, queries.features):
            apart = cross_entropy((-state.apart @ members).flatten(0, 1), labels.flatten())
            aside = edge_loss(state.distribution, alike) + apart
            losses.append(edge_loss(state.point, alike) + ASIDE * aside)
        loss = losses[-1] + EARLY * torch.stack(losses[:-1]).sum()
        return loss, class_scores(state.point, task.labels, task.ways)

    def generations(self, task: Task, queries: Tensor) -> "Iterator[Generation]":
        """Both graphs of support and U, and queries [E, Q, d] that are asked by none."""
        learnt, asked = self.learnt(task), queries.shape[1]
        features = torch.cat([task.support, task.unlabelled, queries], 1)
        graph = TaskGraph(task, features.shape[1] - asked, learnt)
        point = distribution = graph.start(features, self.mass)
        point = point.times(graph.likeness("first", graph.standardised("first", features))[0])
        place = graph.standardised("embedding", features)
        spread = graph.known(features)
        for g in range(GENERATIONS):
            likeness, apart = graph.likeness(f"point_{g}", place)
            point = point.times(likeness)
            spread = graph.spread(f"spread_{g}", point.to_support(), spread)
            distribution = distribution.times(graph.spread_likeness(f"distribution_{g}", spread))
            yield Generation(*(x[:, -asked:] for x in (point.others, distribution.others, apart)))
            if g + 1 < GENERATIONS:
                gathered = torch.cat([place, distribution.means(place)], -1)
                place = graph.layer(f"next_{g}", graph.layer(f"gather_{g}", gathered))


# --- graphs ---


@dataclass(frozen=True)
class Generation:
    """What queries have to do with supports, each [E, Q, S]."""

    point: Tensor  # log e^p
    distribution: Tensor  # log e^d
    apart: Tensor  # ‖v_i − v_j‖²


@dataclass(frozen=True)
class Edges:
    """Logs of the weights from a node to others; what is left to 1 in a row is the node's own.

    From the supports to support and U [E, S, S+U], and from U and queries to the supports
    [E, U+Q, S].
    """

    supports: Tensor
    others: Tensor

    def times(self, likeness: Tensor) -> "Edges":
        """Each edge times the likeness of its ends, nodes and supports [E, n, S], as a log."""
        few, seen = self.supports.shape[1:]
        return Edges(
            weighed(self.supports, likeness[:, :seen].mT), weighed(self.others, likeness[:, few:])
        )

    def to_support(self) -> Tensor:
        """Weights from every node to the supports [E, n, S], with each support's to itself."""
        few = self.supports.shape[1]
        weights = self.supports.exp()
        own = (1 - weights.sum(-1)).diag_embed()
        return torch.cat([weights[..., :few] + own, self.others.exp()], 1)

    def means(self, values: Tensor) -> Tensor:
        """What each node sees of the others' values [E, n, w]."""
        few, seen = self.supports.shape[1:]
        of_supports = self.supports.softmax(-1) @ values[:, :seen]
        return torch.cat([of_supports, self.others.softmax(-1) @ values[:, :few]], 1)


def weighed(edges: Tensor, likeness: Tensor) -> Tensor:
    """Rows [..., m] that keep their mass on others, beside 1 for the node itself; all are logs."""
    mass = edges.logsumexp(-1, keepdim=True)
    return (edges + likeness).log_softmax(-1) + logsigmoid(mass)


@dataclass(frozen=True)
class TaskGraph:
    """What a task's nodes have in common: n nodes, of which the first `seen` are support and U."""

    task: Task
    seen: int
    learnt: LearntTensors

    @property
    def agreement(self) -> Tensor:
        """1 where two supports are of one class [E, S, S]."""
        return (self.task.labels[:, :, None] == self.task.labels[:, None]).to(self.task.support)

    @property
    def in_class(self) -> Tensor:
        """A support's share in the mean of its class [E, S, N]."""
        members = members_of(self.task.labels, self.task.ways, self.task.support.dtype)
        return members / members.sum(1, keepdim=True)

    @property
    def even(self) -> Tensor:
        """A share for every support [E, 1, S]: as much for one class as for any other."""
        return self.in_class.mean(-1)[:, None]

    def known(self, features: Tensor) -> Tensor:
        """Agreement with the supports, and even shares for features [E, n, d] without a label."""
        few = self.task.support.shape[1]
        unknown = self.even.expand(-1, features.shape[1] - few, -1)
        return torch.cat([self.agreement, unknown], 1)

    def start(self, features: Tensor, mass: float) -> Edges:
        """The same as edges, without those of a support to itself; U counts `mass` in all."""
        few = self.task.support.shape[1]
        known = self.known(features)
        among = known[:, :few] - torch.eye(few).to(features)
        to_unlabelled = known.new_full((len(known), few, self.seen - few), mass / (self.seen - few))
        return Edges(torch.cat([among, to_unlabelled], -1).log(), known[:, few:].log())

    def layer(self, name: str, values: Tensor) -> Tensor:
        """Leaky ReLU of a standardised linear map of values [E, n, ..., a] → [E, n, ..., b]."""
        return leaky_relu(self.standardised(name, values))

    def standardised(self, name: str, values: Tensor) -> Tensor:
        """A linear map of values [E, n, ..., a] → [E, n, ..., b], with a scale and a shift.

        Before these, every output has mean 0 and all have variance 1 on average over what the graph
        sees.
        """
        values = linear(values, self.learnt[name])
        seen = values[:, : self.seen].flatten(1, -2)
        shape = (len(values), *(1,) * (values.ndim - 2), values.shape[-1])
        variance = seen.var(1, correction=0).mean(-1).view(*shape[:-1], 1)
        scale = self.learnt[f"{name}_scale"] * (variance + EPSILON).rsqrt()
        return (values - seen.mean(1).view(shape)) * scale + self.learnt[f"{name}_shift"]

    def likeness(self, name: str, places: Tensor) -> tuple[Tensor, Tensor]:
        """Log likeness of nodes to supports [E, n, S], by places [E, n, w]; squared distances."""
        few = self.task.support.shape[1]
        squares = (places[:, :, None] - places[:, None, :few]).square()
        hidden = self.layer(f"{name}_2", self.layer(f"{name}_1", squares))
        return self.log_likeness(name, hidden), squares.sum(-1)

    def spread_likeness(self, name: str, spread: Tensor) -> Tensor:
        """The same from distributions over supports [E, n, S]: by what each class says of it."""
        few = spread.shape[-1]
        squares = (spread[:, :, None] - spread[:, None, :few]).square()  # [E, n, S, S]
        of_class = squares @ self.in_class[:, None]  # [E, n, S, N]
        of_all = of_class.mean(-1, keepdim=True).expand_as(of_class)
        each = self.layer(f"{name}_1", torch.stack([of_class, of_all], -1))
        return self.log_likeness(name, self.layer(f"{name}_2", each.mean(-2)))

    def log_likeness(self, name: str, hidden: Tensor) -> Tensor:
        """Log of a sigmoid [...] of hidden values [..., w]."""
        out = linear(hidden, self.learnt[f"{name}_out"], self.learnt[f"{name}_bias"])
        return logsigmoid(out[..., 0])

    def spread(self, name: str, edges: Tensor, last: Tensor) -> Tensor:
        """Distributions over supports from edges to them and the last ones, each [E, n, S]."""
        both = torch.cat([self.with_means(edges), self.with_means(last)], -1)
        return leaky_relu(linear(both, self.learnt[name], self.learnt[f"{name}_bias"])[..., 0])

    def with_means(self, values: Tensor) -> Tensor:
        """Values over supports [E, n, S] beside the means of the class and of all [E, n, S, 3]."""
        of_class = values @ self.in_class  # [E, n, N]
        own = of_class.gather(-1, self.task.labels[:, None].expand_as(values))
        of_all = of_class.mean(-1, keepdim=True).expand_as(values)
        return torch.stack([values, own, of_all], -1)


@dataclass(frozen=True)
class PropagatedDistributions:
    """A graph of support and U that queries may ask."""

    task: Task
    config: DistributionPropagation

    def logits(self, queries: Queries) -> Tensor:
        """Log of the last edges to each class, each query alone."""
        *_, last = self.config.generations(self.task, queries.features)
        scores = class_scores(last.point, self.task.labels, self.task.ways)
        return join_logits(queries.base_logits, scores)


def class_scores(edges: Tensor, labels: Tensor, ways: int) -> Tensor:
    """Log weights of nodes to all supports of a class [E, n, N], by those to each [E, n, S]."""
    members = members_of(labels, ways, edges.dtype)
    return (edges[..., None] + members.log()[:, None]).logsumexp(2)


def edge_loss(edges: Tensor, alike: Tensor) -> Tensor:
    """Binary cross-entropy of logs [E, Q, S], like pairs and unlike ones averaged apart."""
    return -(edges[alike].mean() + (-edges[~alike].exp()).log1p().mean())


# --- pieces before training ---


def new_layer(name: str, weights: Tensor, shift: float = 0.0) -> dict[str, Tensor]:
    """A linear map [out, in] with a scale and a shift per output."""
    ones = torch.ones(len(weights))
    return {name: weights, f"{name}_scale": ones, f"{name}_shift": shift * ones}


def new_likeness(
    name: str, wide: int, ends: int, fall: float, rng: torch.Generator
) -> dict[str, Tensor]:
    """Two layers that rise with every difference, and an output that falls with both."""
    first, second = (torch.randn(wide, n, generator=rng).abs() / math.sqrt(n) for n in (ends, wide))
    out = torch.rand(1, wide, generator=rng)
    return {
        **new_layer(f"{name}_1", first, ABOVE),
        **new_layer(f"{name}_2", second, ABOVE),
        f"{name}_out": -fall * out / out.sum(),
        f"{name}_bias": torch.tensor([LOW]),
    }


def leading(weights: Tensor, rng: torch.Generator) -> Tensor:
    """The directions in which base classes differ most, rotated [WIDTH, d], by W_b [N_b, d]."""
    noise = torch.randn(WIDTH, weights.shape[1], generator=rng)  # where there are few base classes
    rows = torch.cat([directions(weights), NOISE * noise])
    found: Tensor = torch.linalg.svd(rows, full_matrices=False)[2][:WIDTH]
    return rotation(WIDTH, rng)[:, : len(found)] @ found


def rotation(size: int, rng: torch.Generator) -> Tensor:
    """A random one [size, size]."""
    found: Tensor = torch.linalg.qr(torch.randn(size, size, generator=rng))[0]
    return found


METHODS = (
    MethodSpec(
        "dpgn",
        "DPGN (features)",
        DistributionPropagation(),
        "algorithm-1",
        rank=28,
        joint=False,
        remark="has U as nodes, which is an extension: "
        "the paper's graphs hold one query of each class",
    ),
)
