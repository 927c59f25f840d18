"""DPGN (features): two graphs of a task pass information to each other.

Yang, Li, Zhang, Zhou, Zhou, Liu, "DPGN: distribution propagation graph network for few-shot
learning", CVPR 2020. A picture is a point v, and a distribution: how similar it is to every
support. In every generation similarities of points make distributions, similarities of these tell
who listens to whom, and points move:

    P_is ← P_is · block(v_i, v_s),          D_i ← linear(P_i, D_i)
    Q_is ← Q_is · block(D_i, D_s),          v_i ← v_i + network(v_i, Σ_s Q_is v_s)

with rows that are normalised as in the paper. A class's score is the mean of P over its supports.
Edges begin as label agreement among supports, as 1/|S| between supports and other pictures, and as
0 between the others, where they stay: only edges to supports are computed.

The published figures have exactly one query of each class in a graph, in testing as well. That is
not done here: pictures of U are the vertices without a label, which is an extension of ours, and a
query reads the supports of the finished graph, alone, as a picture of U does, and nobody reads it.
Ours, too: features of the frozen network instead of an encoder that is trained as well, for days;
three generations of width 32 instead of six of 128; layers are normalised per picture, so that no
episode depends on another; what acts on distributions is the same for every support, so that
neither their order nor their number matters; training descends on the cross-entropy of class
scores after every generation. It assumes no balance of classes. There is no place for base classes
in it.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, leaky_relu, linear, nll_loss

from fewgraft.methods.base import LearntTensors, MethodSpec, NovelWeights, Queries, Task
from fewgraft.methods.trained import TrainedMethod
from fewgraft.prototypes import join_logits, members_of, prototypes

WIDTH, NARROW = 32, 8  # of points, and of the block on distributions
EARLY, OF_DISTRIBUTIONS = 0.2, 0.1  # weights of earlier generations and of Q in the loss
LEAST = 1e-6  # of a score, before its logarithm


@dataclass(frozen=True)
class DistributionPropagation(TrainedMethod):
    """How often the graphs speak to each other."""

    uses_unlabelled = True
    pieces = "dpgn"

    generations: int = 3

    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """Blocks that fall with the difference, and points that do not move yet."""
        del gamma, shots

        def drawn(out: int, ends: int) -> Tensor:
            return torch.randn(out, ends, generator=rng) / math.sqrt(ends)

        def falling(name: str, ends: int, hidden: tuple[int, int]) -> dict[str, Tensor]:
            wide, narrow = hidden
            return {
                f"{name}_first": drawn(wide, ends).abs(),
                f"{name}_second": drawn(narrow, wide).abs() / math.sqrt(wide),
                f"{name}_out": -drawn(1, narrow).abs(),
                f"{name}_bias": torch.full((1,), 2.0),
            }

        found = {"embedding": drawn(WIDTH, weights.shape[1])}
        for k in range(self.generations):
            found |= falling(f"points_{k}", WIDTH, (2 * WIDTH, WIDTH))
            found |= falling(f"distributions_{k}", 1, (NARROW, NARROW))
            found[f"mixing_{k}"] = torch.tensor([1.0, 1.0, 0.0, 0.0])
        for k in range(self.generations - 1):
            found[f"moving_{k}"] = drawn(2 * WIDTH, 2 * WIDTH)
            found[f"moving_{k}_out"] = torch.zeros(WIDTH, 2 * WIDTH)
        return found

    def fit(self, task: Task) -> "ReadGraph | NovelWeights":
        """An empty unlabelled set leaves the prototypes."""
        self.learnt(task)
        if not task.unlabelled.shape[1]:
            return NovelWeights(prototypes(task.support, task.labels, task.ways), task.gamma)
        return ReadGraph(task, self, self.generated(task))

    def generated(self, task: Task) -> "list[State]":
        """The supports in every generation, before points move; U are vertices, too."""
        learnt, count = self.learnt(task), task.support.shape[1]
        members = members_of(task.labels, task.ways, task.support.dtype)
        agree = members @ members.transpose(1, 2)  # [E, S, S]
        alone = 1 - torch.eye(count).to(agree)
        to_others = agree.new_full((len(task), count, task.unlabelled.shape[1]), 1 / count)
        edges = torch.cat([agree * alone, to_others], 2)  # of the supports, to all vertices
        supports = State(embedded(task.support, learnt), agree, edges, edges)
        others, states = reader(task.unlabelled, supports, learnt), []
        for k in range(self.generations):
            everyone = torch.cat([supports.value, others.value], 1)
            others = described(others, k, learnt, supports.value)
            supports = described(supports, k, learnt, everyone)
            states.append(supports)
            heard = [Listened.of(supports, others), Listened.of(supports)]
            supports, others = (
                moved(supports, k, learnt, heard[0]),
                moved(others, k, learnt, heard[1]),
            )
        return states

    def loss(
        self, task: Task, queries: Queries, labels: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Of every generation, the last with weight 1; edges of distributions count a tenth."""
        del rng
        states = self.generated(task)
        read = ReadGraph(task, self, states).generations(queries.features)
        total = queries.features.new_zeros(())
        for k, state in enumerate(read):
            weight = 1.0 if k == len(read) - 1 else EARLY
            for edges, part in ((state.points, 1.0), (state.distributions, OF_DISTRIBUTIONS)):
                logs = class_logs(edges, task).flatten(0, 1)
                total = total + weight * part * nll_loss(logs, labels.flatten())
        return total, class_logs(read[-1].points, task)


class State(NamedTuple):
    """Vertices: n of them, with edges to m others; self-loops are kept apart."""

    value: Tensor  # v [E, n, w]
    distribution: Tensor  # D [E, n, S]
    points: Tensor  # P [E, n, m]
    distributions: Tensor  # Q [E, n, m]


class Listened(NamedTuple):
    """Those at the other end of the edges."""

    value: Tensor  # [E, m, w]
    distribution: Tensor  # [E, m, S]

    @classmethod
    def of(cls, *states: State) -> "Listened":
        """The vertices of all these."""
        return cls(*(torch.cat([state[k] for state in states], 1) for k in (0, 1)))


def embedded(features: Tensor, learnt: LearntTensors) -> Tensor:
    """Points v [E, n, w] of features [E, n, d]."""
    return layer_norm(linear(features, learnt["embedding"]), (WIDTH,))


def reader(features: Tensor, supports: State, learnt: LearntTensors) -> State:
    """Pictures [E, n, d] without a label: equal edges to all supports, and to nobody else."""
    count = supports.distribution.shape[-1]
    equal = features.new_full((*features.shape[:2], count), 1 / count)
    return State(embedded(features, learnt), equal, equal, equal)


def described(own: State, k: int, learnt: LearntTensors, values: Tensor) -> State:
    """Edges of points, and distributions from them, by the points [E, m, w] of others."""
    apart = (own.value[:, :, None] - values[:, None]).square()
    points = normalised(own.points, block(apart, f"points_{k}", learnt))
    to_supports = points[..., : own.distribution.shape[-1]]
    mixed = mixed_distribution(to_supports, own.distribution, learnt[f"mixing_{k}"])
    return own._replace(distribution=mixed, points=points)


def moved(own: State, k: int, learnt: LearntTensors, heard: Listened) -> State:
    """Edges of distributions, and points that listen along them; nobody asks the last ones."""
    apart = own.distribution[:, :, None] - heard.distribution[:, None]
    apart = apart.square().sum(-1, keepdim=True)
    edges = normalised(own.distributions, block(apart, f"distributions_{k}", learnt))
    if f"moving_{k}" not in learnt:
        return own._replace(distributions=edges)
    total = edges.sum(-1, keepdim=True).clamp(min=LEAST)
    spoken = torch.cat([own.value, edges / total @ heard.value], -1)
    hidden = leaky_relu(linear(spoken, learnt[f"moving_{k}"]))
    value = layer_norm(own.value + linear(hidden, learnt[f"moving_{k}_out"]), (WIDTH,))
    return own._replace(value=value, distributions=edges)


def block(apart: Tensor, name: str, learnt: LearntTensors) -> Tensor:
    """A similarity in 0 … 1 [E, n, m] of squared differences [E, n, m, ·]."""
    hidden = leaky_relu(linear(apart, learnt[f"{name}_first"]))
    hidden = leaky_relu(linear(hidden, learnt[f"{name}_second"]))
    return linear(hidden, learnt[f"{name}_out"], learnt[f"{name}_bias"])[..., 0].sigmoid()


def normalised(edges: Tensor, similarity: Tensor) -> Tensor:
    """Edges [E, n, m] times similarities, with the sum they had, beside a self-loop of 1."""
    found = edges * similarity
    total = edges.sum(-1, keepdim=True)
    found = found / found.sum(-1, keepdim=True).clamp(min=torch.finfo(found.dtype).tiny) * total
    return found / (1 + total)


def mixed_distribution(points: Tensor, distribution: Tensor, mixing: Tensor) -> Tensor:
    """D [E, n, S] from edges to the supports and D before, for every support the same way."""
    means = (part.mean(-1, keepdim=True) for part in (points, distribution))
    parts = torch.broadcast_tensors(points, distribution, *means)
    return leaky_relu(torch.stack(parts, -1) @ mixing)


def class_logs(edges: Tensor, task: Task) -> Tensor:
    """Logs of class shares [E, n, N] of edges [E, n, S]: the mean over a class's supports."""
    members = members_of(task.labels, task.ways, edges.dtype)
    scores = edges @ (members / members.sum(1, keepdim=True)) + LEAST
    return (scores / scores.sum(-1, keepdim=True)).log()


@dataclass(frozen=True)
class ReadGraph:
    """The supports in every generation, which queries read."""

    task: Task
    config: DistributionPropagation
    states: list[State]

    def generations(self, features: Tensor) -> list[State]:
        """Queries [E, Q, d] after every generation."""
        learnt = self.config.learnt(self.task)
        state, found = reader(features, self.states[0], learnt), []
        for k, supports in enumerate(self.states):
            state = described(state, k, learnt, supports.value)
            state = moved(state, k, learnt, Listened.of(supports))
            found.append(state)
        return found

    def logits(self, queries: Queries) -> Tensor:
        """Logs of class shares, each query alone."""
        found = class_logs(self.generations(queries.features)[-1].points, self.task)
        return join_logits(queries.base_logits, found)


METHODS = (
    MethodSpec(
        "dpgn",
        "DPGN (features)",
        DistributionPropagation(),
        "algorithm-1",
        rank=29,
        joint=False,
        remark="sees U as further vertices and answers every query alone; the paper's figures have "
        "one query of each class in a graph",
    ),
)
