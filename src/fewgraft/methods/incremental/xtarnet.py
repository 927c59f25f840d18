"""XtarNet: features merged for the task, base weights conditioned on it, references pushed away.

Yoon, Kim, Seo, Moon, "XtarNet: learning to extract task-adaptive representation for incremental
few-shot learning", ICML 2020. Beside the frozen feature f there is a second feature g, which is
meta-learnt. With class means over the support and t the mean over classes of [f; g]:

    x = ω_f(t) ⊙ f + ω_g(t) ⊙ g                       merged; c_k its class means, m their mean
    W'_j = (1 + 0.1 μ(m)) ⊙ w_j + 0.1 ν(m)            conditioned base weights
    σ_k = softmax_j(ρ(c_k·W'_1, …, c_k·W'_Nb))        which base classes resemble class k
    R'_k = R_k − Σ_j σ_kj W'_j                        learnt references, pushed away from them

Logits are distances to W' and R' in TapNet's projection, in which R' and c agree.

In the paper g comes from a second last block. It does so in XtarNet (block), on the same
activations as the first. It begins as the trained one, since few steps cannot train it from
nothing; its convolutions learn differences of low rank, since whole ones are larger than all else
that is learnt, and its normalisation layers keep their statistics. In XtarNet (features) g is made
of f by a small net, g = f + B relu(A f). On a cosine network x and W' are of length 1, a learnt
scale takes the place of γ, the nets see features times √d, whose squares are 1 on average, and ρ
sees γ·cos. The nets are as deep as the authors', with matrices of low rank, so that they are small
and learn from few steps; before training they leave features as they are. A class takes its
reference as in `tapnet`. The authors' code takes the projection from the wrong singular vectors;
here it is the paper's.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fewgraft.errors import FewgraftError
from fewgraft.methods.base import LearntTensors, MethodSpec, Queries, Task
from fewgraft.methods.incremental.projection import Projection
from fewgraft.methods.incremental.tapnet import ProjectedCentres, References, closeness, matched
from fewgraft.methods.moving import pictures_of
from fewgraft.methods.trained import TrainedMethod, learnt_block
from fewgraft.prototypes import directions, prototypes

if TYPE_CHECKING:
    from fewgraft.network import Network

Layer = tuple[Tensor, Tensor]  # V [in, out] and v [out]: x V + v
STRENGTH = 0.1  # of conditioning
AT_ONCE = 256  # pictures in the second block
# Layers of each net.
DEPTHS = {"merge_base": 4, "merge_meta": 4, "scale": 3, "shift": 3, "correlation": 3}


@dataclass(frozen=True)
class TaskAdaptive(TrainedMethod):
    """All of it but where g comes from."""

    references: int = 5  # R, at least the number of novel classes
    rank: int = 8  # of the nets' matrices

    @abstractmethod
    def meta(self, task: Task) -> "MetaFeature":
        """How g is made."""

    @abstractmethod
    def initial_meta(self, d: int, rng: torch.Generator) -> dict[str, Tensor]:
        """What makes g, before training; a block apart."""

    def initial(
        self, weights: Tensor, gamma: float, shots: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        """Merged features are f, and distances to W_b nearly the model's logits."""
        del shots
        n_base, d = weights.shape
        found = {
            "references": torch.randn(self.references, d, generator=rng) / math.sqrt(d),
            "distance_scale": torch.tensor(gamma / 2),
            **self.initial_meta(d, rng),
        }
        for net, depth in DEPTHS.items():
            for i in range(depth):
                found |= self._initial_layer(net, i, n_base, d, rng)
        return found

    def _initial_layer(
        self, net: str, i: int, n_base: int, d: int, rng: torch.Generator
    ) -> dict[str, Tensor]:
        name = f"{net}_{i}"
        if net == "correlation":
            return {
                f"{name}_full": torch.randn(n_base, n_base, generator=rng) / n_base,
                f"{name}_bias": torch.zeros(n_base),
            }
        ends = 2 * d if net.startswith("merge") and i == 0 else d
        inside = net.startswith("merge") and i < DEPTHS[net] - 1  # signals must get through
        return {
            f"{name}_in": torch.randn(ends, self.rank, generator=rng) / math.sqrt(ends),
            f"{name}_out": torch.randn(self.rank, d, generator=rng)
            * (math.sqrt(2 / self.rank) if inside else 0.0),
            f"{name}_bias": torch.zeros(d),
        }

    def fit(self, task: Task) -> "MergedCentres":
        """Read the task, then distances as in TapNet."""
        learnt = self.learnt(task)
        nets, size = task_nets(learnt), math.sqrt(task.support.shape[-1])
        meta = self.meta(task)
        support = meta(task.support, task.pictures.support if task.pictures else None)
        both = torch.cat([task.support, support], -1)
        mean = prototypes(both, task.labels, task.ways, normalise=False).mean(1, keepdim=True)
        shares = [merging(net, size * mean) for net in (nets.merge_base, nets.merge_meta)]
        merge = Merging(*shares)
        means = prototypes(merge(task.support, support), task.labels, task.ways, normalise=False)
        base = size * directions(task.weights)
        base = directions(conditioned(nets, base, size * means.mean(1, keepdim=True)))
        products = task.gamma * means @ base.transpose(1, 2)
        attention = task.strike(correlation(nets.correlation, products)).softmax(-1)
        novel = pushed_away(self._references(learnt["references"], means), attention, base)
        projection = Projection.aligning(novel, means)
        return MergedCentres(
            meta, merge, ProjectedCentres(task, projection, base, novel, learnt["distance_scale"])
        )

    def _references(self, points: Tensor, means: Tensor) -> Tensor:
        """R of each class [E, N, d]."""
        references = References(points, points.new_zeros(len(points)))
        return references.chosen(matched(closeness(references, means))).points


@dataclass(frozen=True)
class XtarNet(TaskAdaptive):
    """The whole of it on features."""

    pieces = "xtarnet"

    hidden: int = 64  # of the net that makes g

    def initial_meta(self, d: int, rng: torch.Generator) -> dict[str, Tensor]:
        """A net that gives nothing."""
        return {
            "meta_in": torch.randn(d, self.hidden, generator=rng) / math.sqrt(d),
            "meta_out": torch.zeros(self.hidden, d),
        }

    def meta(self, task: Task) -> "SmallNet":
        """Of f."""
        learnt = self.learnt(task)
        return SmallNet(learnt["meta_in"], learnt["meta_out"])


@dataclass(frozen=True)
class XtarNetBlock(TaskAdaptive):
    """The whole of it with a second last block."""

    pieces = "xtarnet-block"
    moves_network = True
    at_a_time = 100  # g of a picture is the same in all of these episodes

    block_rank: int = 4  # of what the second block has beside the first

    def initial_meta(self, d: int, rng: torch.Generator) -> dict[str, Tensor]:
        """Nothing beside the block."""
        del d, rng
        return {}

    def meta(self, task: Task) -> "SecondBlock":
        """Of pictures."""
        network = pictures_of(task).network
        return SecondBlock(network, learnt_block(self.learnt(task), network.start))


class MetaFeature(Protocol):
    """g of features [..., d] and of the pictures [...] that they are of."""

    def __call__(self, features: Tensor, pictures: Tensor | None) -> Tensor:
        """[..., d]."""
        ...


@dataclass(frozen=True)
class SmallNet:
    """A small net beside a shortcut."""

    into: Tensor  # A [d, h]
    out: Tensor  # B [h, d]

    def __call__(self, features: Tensor, pictures: Tensor | None) -> Tensor:
        """The net sees and gives features times √d."""
        del pictures
        size = math.sqrt(features.shape[-1])
        return features + (size * features @ self.into).relu() @ self.out / size


@dataclass(frozen=True)
class SecondBlock:
    """The network with another last block."""

    network: "Network"
    block: LearntTensors

    def __call__(self, features: Tensor, pictures: Tensor | None) -> Tensor:
        """Directions; each picture is computed once, however many episodes have it."""
        del features
        if pictures is None:
            raise FewgraftError("XtarNet with a second block needs pictures, not features")
        each, places = torch.unique(pictures, return_inverse=True)
        parts = [self.network.features(some, self.block) for some in each.split(AT_ONCE)]
        return torch.cat(parts)[places]


@dataclass(frozen=True)
class Merging:
    """x of f and g, as a direction."""

    base_share: Tensor  # ω_f [E, 1, d]
    meta_share: Tensor  # ω_g [E, 1, d]

    def __call__(self, base: Tensor, meta: Tensor) -> Tensor:
        """f and g [E, n, d] → [E, n, d]."""
        return directions(self.base_share * base + self.meta_share * meta)


@dataclass(frozen=True)
class MergedCentres:
    """Queries are merged as the support was."""

    meta: MetaFeature
    merge: Merging
    centres: ProjectedCentres

    def logits(self, queries: Queries) -> Tensor:
        """Distances of merged queries."""
        meta = self.meta(queries.features, queries.pictures)
        return self.centres.of(self.merge(queries.features, meta))


def task_nets(learnt: LearntTensors) -> "TaskNets":
    """The nets of learnt pieces, their matrices written out."""

    def layer(name: str) -> Layer:
        full = learnt.get(f"{name}_full")
        weight = learnt[f"{name}_in"] @ learnt[f"{name}_out"] if full is None else full
        return weight, learnt[f"{name}_bias"]

    return TaskNets(**{n: [layer(f"{n}_{i}") for i in range(k)] for n, k in DEPTHS.items()})


@dataclass(frozen=True)
class TaskNets:
    """The nets that read the task: ω_f and ω_g, μ and ν, and ρ."""

    merge_base: Sequence[Layer]
    merge_meta: Sequence[Layer]
    scale: Sequence[Layer]
    shift: Sequence[Layer]
    correlation: Sequence[Layer]


def merging(layers: Sequence[Layer], task: Tensor) -> Tensor:
    """ω of the task's mean [E, 1, 2d]: a share per feature [E, 1, d]."""
    *hidden, last = layers
    for weight, bias in hidden:
        task = (task @ weight + bias).relu()
    return (task @ last[0] + last[1]).sigmoid()


def conditioning(layers: Sequence[Layer], mean: Tensor) -> Tensor:
    """μ or ν of the mean of class means [E, 1, d]: not negative [E, 1, d]."""
    for weight, bias in layers:
        mean = (mean @ weight + bias + mean).relu()
    return mean


def conditioned(nets: TaskNets, base: Tensor, mean: Tensor) -> Tensor:
    """W' [E, N_b, d] of base weights [N_b, d]."""
    scale, shift = (conditioning(net, mean) for net in (nets.scale, nets.shift))
    return (1 + STRENGTH * scale) * base + STRENGTH * shift


def correlation(layers: Sequence[Layer], products: Tensor) -> Tensor:
    """ρ of the products of class means with base weights [E, N, N_b]: as many, not negative."""
    weight, bias = layers[0]
    products = (products @ weight + bias).relu()
    for weight, bias in layers[1:]:
        products = (products @ weight + bias + products).relu()
    return products


def pushed_away(references: Tensor, attention: Tensor, base: Tensor) -> Tensor:
    """R' [E, N, d] of references, attention σ [E, N, N_b] and weights W' [E, N_b, d]."""
    return references - attention @ base


METHODS = (
    MethodSpec("xtarnet", "XtarNet (features)", XtarNet(), "pre-trained", rank=5, regular=False),
    MethodSpec(
        "xtarnet-block", "XtarNet (block)", XtarNetBlock(), "pre-trained", rank=5, regular=False
    ),
)
